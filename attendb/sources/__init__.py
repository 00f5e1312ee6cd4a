"""Where the pairs live."""
