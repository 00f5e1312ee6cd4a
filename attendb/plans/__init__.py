"""How an answer is computed. Every plan gives the same answer; `planner.py` chooses by estimated cost and says why."""
