// matrix_units.cuh is tensor_cores.cuh now; the next release drops this name.
// What it declares has kept its names.
#pragma once

#include "tensor_cores.cuh"
