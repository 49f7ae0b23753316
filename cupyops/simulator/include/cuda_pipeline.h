// Replaces CUDA's cuda_pipeline.h, of which public kernels use the primitives.
#pragma once

#include "cuda_pipeline_primitives.h"
