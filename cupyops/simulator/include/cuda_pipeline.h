// Replaces CUDA's cuda_pipeline.h by the primitives, the part of the header that public kernels use.
#pragma once

#include "cuda_pipeline_primitives.h"
