"""The kernels of plan "pruned", by number; those from BOXCAR on are compact. Imports nothing, numba neither."""

GAUSSIAN, LAPLACIAN, EUCLIDEAN, BOXCAR, TRIANGULAR, EPANECHNIKOV = range(6)
