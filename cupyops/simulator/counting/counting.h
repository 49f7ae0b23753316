// The interface of the counters: what a counted launch returns to Python.
#pragma once
#include "abi.h"

enum CupyopsSiteKind { CUPYOPS_BLOCK, CUPYOPS_LOAD, CUPYOPS_STORE, CUPYOPS_ATOMIC, CUPYOPS_BULK_LOAD, CUPYOPS_BULK_STORE };
enum CupyopsSpace { CUPYOPS_GLOBAL, CUPYOPS_SHARED, CUPYOPS_REMOTE, CUPYOPS_SPACES };

// The requests of one site to one memory space. A request is one execution of an access by one warp.
struct CupyopsRequests {
    unsigned long long requests;
    unsigned long long lanes;       // lanes that took part, summed over the requests
    unsigned long long sectors;     // distinct aligned 32 bytes, summed over the requests
    unsigned long long ideal;       // the fewest sectors that hold as many distinct bytes, summed over the requests
    unsigned long long wavefronts;  // passes over the banks of shared memory
    unsigned long long conflicts;   // wavefronts beyond those that the width of the access needs
    unsigned long long collisions;  // atomic operations: the most lanes at one address, summed over the requests
};

// A basic block, or a memory access, of the compiled kernel.
struct CupyopsSite {
    unsigned kind, bytes;
    unsigned long long executions, lanes;  // executions by a warp, and lanes summed over them
    CupyopsRequests spaces[CUPYOPS_SPACES];
    unsigned frame_count;
    uintptr_t frames[CUPYOPS_FRAMES];  // return addresses, innermost first
};

// The bytes of one array that a launch accessed.
struct CupyopsTouched {
    unsigned long long loaded_bytes, stored_bytes;      // distinct bytes
    unsigned long long loaded_sectors, stored_sectors;  // of all requests; an atomic operation stores
    unsigned long long loaded_bulk, stored_bulk;        // bytes of bulk copies
};

extern "C" {
void cupyops_count_begin(const CupyopsLaunch* launch);
void cupyops_count_end();
unsigned cupyops_count_sites();
const CupyopsSite* cupyops_count_site(unsigned site);
const CupyopsTouched* cupyops_count_touched();  // one for each range of the launch
}
