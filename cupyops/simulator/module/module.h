// The tables that the translation of a text defines: its kernels and its variables.
#pragma once
#include "../runtime/abi.h"

struct CupyopsEntry {
    void (*entry)(void** arguments);
    const unsigned* parameter_bytes;  // the size of each parameter
    unsigned parameters;
    unsigned cluster[3];
    unsigned max_threads;  // from __launch_bounds__, or 0
};

extern "C" {
extern __attribute__((visibility("hidden"))) const CupyopsEntry cupyops_kernels[];
extern __attribute__((visibility("hidden"))) const CupyopsVariable cupyops_variables[];  // the last one has no name
}
