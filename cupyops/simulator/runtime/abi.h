// What a compiled kernel, the runtime and Python agree on. Plain data and C functions only.
#pragma once
#include <stddef.h>
#include <stdint.h>

struct CupyopsIndex { unsigned x, y, z; };

// One shared variable of a kernel, entered when the first thread meets its declaration.
struct CupyopsShared {
    const char* name;
    unsigned begin, bytes, element_bytes;  // offset in the block's shared memory
};

enum { CUPYOPS_MAX_SHARED_VARIABLES = 256 };

// A compiled kernel, as the runtime sees it: its built-in variables and what it has declared so far.
struct CupyopsModule {
    void (*entry)(void** arguments);
    void *thread_index, *block_index, *block_dim, *grid_dim;  // CupyopsIndex, or what has its layout
    const unsigned* parameter_bytes;  // of each parameter
    unsigned parameters;
    unsigned cluster[3];
    unsigned max_threads;  // by __launch_bounds__, or 0
    unsigned shared_end;  // where the next shared variable goes
    unsigned shared_count;
    CupyopsShared shared[CUPYOPS_MAX_SHARED_VARIABLES];
};

// Memory that a launch may touch: one array, or several that overlap.
struct CupyopsRange {
    uintptr_t begin, end;
    int writable;
};

struct CupyopsLaunch {
    CupyopsModule* module;
    void** arguments;
    unsigned grid[3], block[3];
    unsigned dynamic_shared;
    int checked;  // 1: all but races in global memory, 2: these, too
    const CupyopsRange* ranges;
    unsigned range_count;
    unsigned long long first_block, end_block;  // only clusters that begin in between run
    // Called about once a second with the number of finished blocks; anything but 0 ends the launch.
    int (*progress)(unsigned long long finished);
};

enum CupyopsFaultKind {
    CUPYOPS_NO_FAULT,
    CUPYOPS_GLOBAL_BOUNDS,
    CUPYOPS_SHARED_BOUNDS,
    CUPYOPS_CONST_WRITE,
    CUPYOPS_SHARED_RACE,
    CUPYOPS_GLOBAL_RACE,
    CUPYOPS_UNINITIALISED,
    CUPYOPS_NOT_SHOWN,   // the hardware reads what a thread wrote and has not shown it
    CUPYOPS_UNDEFINED,   // what UBSan finds; the words are in `text`
    CUPYOPS_BARRIER,     // no thread can go on
    CUPYOPS_WARP,        // a collective that was asked for what it cannot give
    CUPYOPS_ASSERT,
    CUPYOPS_SIGNAL,
    CUPYOPS_REMOTE_ENDED,
    CUPYOPS_LIMIT,
};

enum { CUPYOPS_FRAMES = 24, CUPYOPS_TEXT = 8192 };

struct CupyopsFault {
    int kind;
    unsigned block[3], thread[3];
    uintptr_t address;
    unsigned bytes;
    int write;
    int shared_variable;  // index in the module, -1 for dynamic shared memory, -2 for none
    long long shared_offset;
    unsigned other_block[3], other_thread[3];
    int other_write;
    uintptr_t other_pc;
    uintptr_t other_caller;  // of the function that holds other_pc, which may be one of CUDA's
    int same_value;          // both wrote, and what was there already
    const char* file;  // where UBSan says the place itself
    unsigned line;
    unsigned frame_count;
    uintptr_t frames[CUPYOPS_FRAMES];
    char text[CUPYOPS_TEXT];
};

enum CupyopsWarpOperation {
    CUPYOPS_SHFL,
    CUPYOPS_SHFL_UP,
    CUPYOPS_SHFL_DOWN,
    CUPYOPS_SHFL_XOR,
    CUPYOPS_ALL,
    CUPYOPS_ANY,
    CUPYOPS_BALLOT,
    CUPYOPS_MATCH_ANY,
    CUPYOPS_MATCH_ALL,
    CUPYOPS_REDUCE_ADD,
    CUPYOPS_REDUCE_MIN,
    CUPYOPS_REDUCE_MAX,
    CUPYOPS_REDUCE_UMIN,
    CUPYOPS_REDUCE_UMAX,
    CUPYOPS_REDUCE_AND,
    CUPYOPS_REDUCE_OR,
    CUPYOPS_REDUCE_XOR,
    CUPYOPS_SYNCWARP,
    CUPYOPS_WARP_OPERATIONS,
};

enum CupyopsBarrierOperation { CUPYOPS_SYNC, CUPYOPS_COUNT, CUPYOPS_AND, CUPYOPS_OR };

extern "C" {
// For kernels.
int cupyops_barrier(int operation, int predicate);
unsigned long long cupyops_warp(
    int operation, unsigned mask, unsigned long long value, int lane, int width, int* predicate);
unsigned cupyops_active_mask();
// A barrier with a number, from 1 on, for so many threads of the block. With `reads_alone` they learn of one another only
// what was read before.
void cupyops_meet(unsigned barrier, unsigned threads, int reads_alone);
void* cupyops_kept(unsigned number, size_t bytes);  // zeros at first, of the block and this number, for twins of the hardware
unsigned cupyops_lane();
void* cupyops_shared(CupyopsModule* module, const char* name, size_t bytes, size_t element_bytes, size_t alignment);
void* cupyops_dynamic_shared();
unsigned cupyops_dynamic_bytes();
int cupyops_is_shared(const void* p);
unsigned cupyops_shared_address(const void* p);
void cupyops_cluster_arrive(int relaxed);
void cupyops_cluster_wait();
void* cupyops_cluster_map(const void* p, unsigned rank);
unsigned cupyops_cluster_rank_of(const void* p);
unsigned cupyops_cluster_rank();
void cupyops_touch(const void* p, size_t bytes, int write);         // a plain access, where checked
void cupyops_touch_by_hardware(const void* p, size_t bytes, int write);  // one of the copying hardware or the tensor cores
void cupyops_show();                                                // what the thread has written, the hardware will see
void cupyops_atomic(const void* p, size_t bytes);                   // before an atomic operation
void cupyops_look(const void* p, size_t bytes);                     // a load past the first cache, with which a thread may be waiting
void cupyops_changed();                                             // behind one that changed something
void cupyops_spin();                                                // a thread may be waiting for another
void cupyops_fence();
void cupyops_yield();
void cupyops_assert(const char* expression, const char* file, unsigned line, const char* function);
void cupyops_trap();
void cupyops_exit();
int cupyops_printf(const char* format, ...);
unsigned long long cupyops_clock();

// For Python.
int cupyops_run(const CupyopsLaunch* launch);  // 0 done, 1 fault, 2 interrupted
const CupyopsFault* cupyops_fault();
size_t cupyops_fault_bytes();
void cupyops_release();
}
