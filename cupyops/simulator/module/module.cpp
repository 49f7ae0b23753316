// What the library of every simulated kernel has beside its text. This file is compiled once, and linked into each library.
#include "module.h"

#define HIDDEN __attribute__((visibility("hidden")))
#define EXPORTED __attribute__((visibility("default")))

extern "C" {
HIDDEN CupyopsIndex threadIdx, blockIdx, blockDim, gridDim;
HIDDEN CupyopsModule cupyops_module = {nullptr, &threadIdx, &blockIdx, &blockDim, &gridDim, nullptr, 0, {1, 1, 1}, 0, 0, 0, {}};

// Makes a kernel the one that the library launches.
EXPORTED CupyopsModule* cupyops_get_module(unsigned number) {
    const CupyopsEntry& kernel = cupyops_kernels[number];
    cupyops_module.entry = kernel.entry;
    cupyops_module.parameter_bytes = kernel.parameter_bytes, cupyops_module.parameters = kernel.parameters;
    for (int i = 0; i < 3; ++i) cupyops_module.cluster[i] = kernel.cluster[i];
    cupyops_module.max_threads = kernel.max_threads;
    return &cupyops_module;
}
EXPORTED const CupyopsVariable* cupyops_get_variables() { return cupyops_variables; }

// Functions that the compiler calls.
HIDDEN void __stack_chk_fail() {
    cupyops_smashed();
    __builtin_trap();
}
HIDDEN void __cxa_pure_virtual() { cupyops_misuse("calls a pure virtual function"); }
HIDDEN void __cxa_throw_bad_array_new_length() { cupyops_misuse("makes an array of a negative number of elements by new"); }
}
