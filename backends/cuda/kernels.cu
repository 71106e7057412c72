/* One translation unit of all kernels, for device compilers. */
#include "kernels.cuh"
