// The interface between a compiled kernel, the runtime and Python: plain data and C functions only.
#pragma once
#include <stddef.h>
#include <stdint.h>

struct CupyopsIndex { unsigned x, y, z; };

// One shared variable of a kernel; the first thread to reach the declaration registers the variable.
struct CupyopsShared {
    const char* name;
    unsigned begin, bytes, element_bytes;  // offset in the block's shared memory
};

enum { CUPYOPS_MAX_SHARED_VARIABLES = 256, CUPYOPS_MAX_STATIC_SHARED = 48 * 1024, CUPYOPS_MAX_SHARED = 227 * 1024 };

// The bytes of an array that a launch may access, or of a variable of the library.
struct CupyopsRange {
    uintptr_t begin, end;
    int writable;
};

// A compiled kernel: its entry, its built-in variables, its attributes, and the shared variables registered so far.
struct CupyopsModule {
    void (*entry)(void** arguments);
    void *thread_index, *block_index, *block_dim, *grid_dim;  // each points to three unsigned, as in CupyopsIndex
    const unsigned* parameter_bytes;  // the size of each parameter
    unsigned parameters;
    unsigned cluster[3];
    unsigned max_threads;  // from __launch_bounds__, or 0
    unsigned shared_end;  // the end of the registered shared variables, as an offset
    unsigned shared_count;
    CupyopsShared shared[CUPYOPS_MAX_SHARED_VARIABLES];
    const CupyopsRange* variables;  // the variables of the library, which Python finds
    unsigned variable_count;
    uintptr_t code, code_end;  // the instructions of the text's functions
    size_t shared_bytes, shared_largest;  // the bytes of all shared variables, and of the largest one
};

// A __device__ or __constant__ variable of a text.
struct CupyopsVariable {
    const char* name;
    void* address;
    size_t bytes;
};

// What a launch checks. All but CUPYOPS_UNCHECKED need a kernel that is compiled with calls at every access.
enum CupyopsChecks { CUPYOPS_UNCHECKED, CUPYOPS_BOUNDS, CUPYOPS_ALL_BUT_GLOBAL_RACES, CUPYOPS_ALL_CHECKS };

struct CupyopsLaunch {
    CupyopsModule* module;
    void** arguments;
    unsigned grid[3], block[3];
    unsigned dynamic_shared;
    int checked;  // one of CupyopsChecks
    const CupyopsRange* ranges;
    unsigned range_count;
    unsigned long long first_block, end_block;  // the block numbers that run, each bound rounded down to whole clusters
    int alone;        // whether the module has one kernel: all its shared variables are this kernel's
    int cooperative;  // whether the launch is cooperative: a barrier of the grid is allowed
};

// The running thread, for the counters of memory accesses (simulator/counting).
struct CupyopsHere {
    const void* fibre;
    const char* stack;         // the lowest byte of the thread's stack
    unsigned long long block;  // the number of the thread's block in the order in which blocks begin
    unsigned thread;
};

enum CupyopsFaultKind {
    CUPYOPS_NO_FAULT,
    CUPYOPS_GLOBAL_BOUNDS,
    CUPYOPS_SHARED_BOUNDS,
    CUPYOPS_CONST_WRITE,
    CUPYOPS_SHARED_RACE,
    CUPYOPS_GLOBAL_RACE,
    CUPYOPS_UNINITIALISED,
    CUPYOPS_NOT_SHOWN,   // a bulk copy or wgmma reads a thread's write without fence.proxy.async in between
    CUPYOPS_UNDEFINED,   // a fault that UBSan finds; `text` has the message
    CUPYOPS_BARRIER,     // a misused barrier, or a deadlock
    CUPYOPS_WARP,        // a warp or cluster function with invalid arguments
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
    size_t bytes;
    int write;
    int shared_variable;  // index in the module, -1 for dynamic shared memory, -2 for none
    long long shared_offset;
    unsigned other_block[3], other_thread[3];
    int other_write;
    uintptr_t other_pc;
    uintptr_t other_caller;  // the caller of the function of other_pc, since that function may be a CUDA function
    int same_value;          // both threads wrote, and the second write did not change the bytes
    const char* file;  // the source file, if UBSan or assert names it; else null
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
    CUPYOPS_MATRIX,  // meets the lanes of a matrix instruction; as a shuffle does, it orders reads alone
    CUPYOPS_SYNCWARP,
    CUPYOPS_WARP_OPERATIONS,
};

enum CupyopsBarrierOperation { CUPYOPS_SYNC, CUPYOPS_COUNT, CUPYOPS_AND, CUPYOPS_OR };

// Compiled with CUPYOPS_COUNTED, a kernel reports to the counters that a thread has ended, and where the accesses of a bulk
// copy begin and end.
#ifdef CUPYOPS_COUNTED
extern "C" void cupyops_count_ended();
extern "C" void cupyops_count_bulk(int on);
#define CUPYOPS_ENDED() cupyops_count_ended()
#define CUPYOPS_BULK_COPY(on) cupyops_count_bulk(on)
#else
#define CUPYOPS_ENDED() void(0)
#define CUPYOPS_BULK_COPY(on) void(0)
#endif

extern "C" {
// Functions that kernels call.
int cupyops_barrier(int operation, int predicate);
unsigned long long cupyops_warp(
    int operation, unsigned mask, unsigned long long value, int lane, int width, int* predicate);
unsigned cupyops_active_mask();
// The named barrier `barrier`, from 1 on, of `threads` threads of the block. With `reads_alone` the barrier orders the
// reads before it, but no writes.
void cupyops_meet(unsigned barrier, unsigned threads, int reads_alone);
int cupyops_grid_begin(unsigned long long* launch);  // whether the launch is cooperative; writes the number of the launch
void cupyops_misuse(const char* words);              // ends the launch: a function of a header is used wrongly
void* cupyops_allocate(size_t bytes);  // of the heap, as malloc and new in device code
void cupyops_deallocate(void* memory);
void* cupyops_kept(unsigned number, size_t bytes);  // memory of the block by number, zero at first; simulator/hardware uses it
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
void cupyops_touch(const void* p, size_t bytes, int write);         // checks a plain access
void cupyops_touch_by_hardware(const void* p, size_t bytes, int write);  // checks an access of a bulk copy or of wgmma
void cupyops_show();                                                // fence.proxy.async, for the writes of this thread
void cupyops_atomic(const void* p, size_t bytes);                   // called before an atomic operation
void cupyops_look(const void* p, size_t bytes);                     // called before a load that bypasses L1
void cupyops_changed();                                             // called after an atomic operation that changed memory
void cupyops_spin();                                                // called where a thread may wait: yields on every 32nd call
void cupyops_fence();
void cupyops_yield();
void cupyops_assert(const char* expression, const char* file, unsigned line, const char* function);
void cupyops_trap();
void cupyops_smashed();  // a function has overwritten its own frame
void cupyops_exit();
int cupyops_printf(const char* format, ...);
unsigned long long cupyops_clock();

// Functions that the counters call.
void cupyops_check(const void* p, size_t bytes, int write, uintptr_t frame, uintptr_t pc);  // the bounds of an access
int cupyops_here(CupyopsHere* here);  // 0 if no thread runs
void cupyops_pause();                 // lets the other threads run

// Functions that Python calls. A launch is begun, continued until it is done, and ended. It pauses about every 50 ms, so that
// Python runs its signal handlers between two pauses, and may end the launch there.
void cupyops_begin(const CupyopsLaunch* launch);
int cupyops_continue();                 // 0 done, 1 fault, 2 paused
void cupyops_where();                   // records where the threads of a paused launch are, as a fault
unsigned long long cupyops_finished();  // the number of finished blocks
void cupyops_end();
void cupyops_limits(int with_guards, size_t threads);  // for tests: guard pages of stacks, and the threads that run at once
const CupyopsFault* cupyops_fault();
size_t cupyops_fault_bytes();
}
