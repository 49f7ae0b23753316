// The data structures of the runtime: clusters, blocks, threads as fibres, and vector clocks.
#pragma once
#include "abi.h"

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

// Hidden: the files of the runtime call each other directly, not through the tables of the dynamic linker.
namespace __attribute__((visibility("hidden"))) simulator {

constexpr unsigned WARP = 32;
constexpr unsigned MAX_CLUSTER = 16;
constexpr unsigned MAX_THREADS = 1024;
// Shared memory of a block: static variables, each with a gap after it, then the dynamic part.
constexpr size_t STATIC_BYTES = 256 * 1024, DYNAMIC_BYTES = 256 * 1024, ARENA_BYTES = STATIC_BYTES + DYNAMIC_BYTES;
constexpr size_t STACK_BYTES = 256 * 1024;

// A vector clock: a clock for each thread of a group, for each group with a known clock, by group number. The accesses of
// another thread up to its clock happened before this thread's next access. Threads that passed a barrier together
// have equal vector clocks, so they share one copy.
struct GroupClocks {
    unsigned group;
    std::shared_ptr<const std::vector<unsigned>> clocks;
};
typedef std::shared_ptr<const std::vector<GroupClocks>> Clocks;

// The vector clocks that the writers of a flag publish: accesses ordered before their last fence.
struct Published {
    Clocks known[2];
    unsigned version = 0;
};
typedef std::unordered_map<uintptr_t, Published> Flags;

struct Stack {
    char* low;  // the lowest usable byte
    char* top;  // where the first frame begins: up to a page below the end, at another offset in each stack
    bool guarded;  // whether the page below is protected
};

enum class State : unsigned char { NEW, READY, BARRIER, MEETING, WARP_OPERATION, ACTIVE_MASK, CLUSTER, DONE };

struct Block;

struct Fibre {
    void* sp = nullptr;
    Stack stack{};
    Block* block = nullptr;
    CupyopsIndex index{};
    unsigned thread = 0;
    State state = State::NEW;
    bool spun = false;      // the fibre last yielded in a loop that may wait for another thread
    unsigned spins = 0;
    // The arguments and the result of the barrier or warp operation at which the fibre waits.
    int operation = 0;
    unsigned mask = 0;
    unsigned long long value = 0;
    int lane_argument = 0, width = WARP, predicate = 0;
    // The frame that waits, and its return address. A waiting fibre keeps its stack, so that a fault finds the callers there.
    uintptr_t waiting_frame = 0, waiting_pc = 0;
    // Clocks that order accesses.
    unsigned epoch = 0;              // block barriers that the fibre has passed
    unsigned arrived = 0, waited = 0;  // arrivals at the cluster's barrier, and completed waits
    uint64_t relaxed = 0;            // a bit for each of the last 64 arrivals: 1 if the arrival was relaxed
    // Two sets of clocks: [0] orders all accesses, [1] orders reads alone. A shuffle orders the reads before it, since
    // a shuffled value depends on them; a shuffle orders no writes.
    unsigned clocks[2][WARP] = {};    // clocks of the warp's lanes; the fibre's own clock advances at every release
    Clocks known[2];                  // clocks of the cluster's threads and of other groups, acquired through flags
    Clocks fenced[2];                 // `known` at the last fence; a flag write publishes it, and barriers merge it
    uintptr_t flag = 0;               // the flag that the fibre read last
    unsigned flag_version = 0;        // the version of `flag` at that read, so that a polling loop acquires each version once
    unsigned barrier_clock = 0;       // the fibre's own clock at the last barrier of its block
    unsigned arrive_clock = 0;  // the own clock at the last arrival at the cluster's barrier
    unsigned shown = 0;  // writes before this clock are visible to the async proxy
    uint64_t name = 0;   // the thread's group, rank and thread number, at the bits that a global stamp has them

    Clocks& handed_on(int which) { return which < 2 ? known[which] : fenced[which - 2]; }  // the clocks that a barrier merges
    unsigned clock() const { return clocks[0][lane()]; }
    unsigned lane() const { return thread % WARP; }
    unsigned warp() const { return thread / WARP; }
};

struct Shadow;

struct Block {
    CupyopsIndex index{};
    unsigned rank = 0;  // in its cluster
    struct Group* group = nullptr;
    std::vector<Fibre> fibres;
    unsigned done = 0, at_barrier = 0;
    std::unordered_map<unsigned, unsigned> meeting;               // waiting threads, by number of a named barrier
    std::unordered_map<unsigned, std::unique_ptr<char[]>> kept;  // memory of cupyops_kept(), by number
    bool begun = false;
    char* saved = nullptr;  // its shared memory while another block of the cluster runs
    Shadow* shadow = nullptr;
    ~Block();
    bool ended() const { return done == fibres.size(); }
};

// The blocks of a cluster, which run concurrently. A kernel without clusters has one block in each group.
struct Group {
    unsigned number = 0;  // groups are numbered in the order of their start
    std::vector<std::unique_ptr<Block>> blocks;
    std::unique_ptr<char[]> saved;
    size_t saved_bytes = 0;
    unsigned arrivals = 0;  // in the current phase of the cluster's barrier
    unsigned phase = 0;     // phases completed
    // The merged clocks of the threads that arrive at the cluster's barrier; a thread that waits acquires them.
    // `released` has one set for even and one for odd phases.
    Clocks arriving[4], released[2][4];
    // The clocks of all threads at the cluster's barrier, in even and in odd phases.
    std::vector<unsigned> cluster_clocks[2];
    Flags flags;                         // flags in shared memory
};

struct Machine {
    const CupyopsLaunch* launch = nullptr;
    Fibre* current = nullptr;
    Block* live = nullptr;  // the block whose shared memory is in the arena
    void* scheduler_sp = nullptr;
    std::vector<std::unique_ptr<Group>> active;
    unsigned long long first_group = 0, next_group = 0, groups = 0, finished_blocks = 0;
    unsigned threads = 0;
    unsigned long long launches = 0;  // launches begun in this process
    int outcome = 0;
    // Counts the events that may end a wait: writes to memory, and reads of the clock. The count is complete in checked
    // launches alone, since unchecked launches do not record plain writes.
    unsigned long long changes = 0;
    bool frozen = false;  // the launch is in a deadlock; the next thread that waits reports the fault
    char* arena = nullptr;
    Flags flags;        // flags in global memory
    bool held = false;  // a race of two writes is recorded; the report waits until the second write is in memory
};

extern Machine machine;
extern CupyopsFault fault_record;

enum class Access { READ, WRITE, VOLATILE_READ, VOLATILE_WRITE, ATOMIC };
inline bool reads(Access kind) { return kind == Access::READ || kind == Access::VOLATILE_READ || kind == Access::ATOMIC; }
inline bool writes(Access kind) { return kind == Access::WRITE || kind == Access::VOLATILE_WRITE || kind == Access::ATOMIC; }

// scheduler.cpp
char* arena();  // the memory that holds the shared memory of the running block
void pause_at(uintptr_t frame);        // gives the processor to Python if a pause is due
void give_way();                       // switches to the scheduler; returns when the scheduler resumes this fibre
[[noreturn]] void abandon(int outcome);  // ends the launch from within a fibre
void uninterrupted(bool on);           // true: Ctrl-C must not end the running fibre now
Fibre* lane_of(const Block& block, unsigned warp, unsigned lane);
void wait_here(Fibre& fibre, State state);
CupyopsIndex block_index(unsigned long long group, unsigned rank);  // `group` is the cluster's number in the grid

// Notes the place from which the caller of this function of the runtime waits.
#define WAITS_HERE(fibre)                                                           \
    fibre.waiting_frame = reinterpret_cast<uintptr_t>(__builtin_frame_address(0)); \
    fibre.waiting_pc = reinterpret_cast<uintptr_t>(__builtin_return_address(0))

// clusters.cpp
void try_cluster(Group& group);

// collectives.cpp
void thread_ended(Fibre& fibre);
bool resolve_active_masks();
void explain_standstill();
std::string inventory(const Block& block);  // where each thread of a block waits

// faults.cpp
CupyopsFault& begin_fault(int kind);
void place(CupyopsFault& fault, const Fibre& fibre);
unsigned walk(const Fibre& fibre, uintptr_t frame, uintptr_t* out);
[[noreturn]] void raise_fault(CupyopsFault& fault);  // ends the launch from the running fibre
[[noreturn]] void frozen(void* frame);           // reports a deadlock from a fibre that waits
unsigned waiting_frames(const Fibre& fibre, uintptr_t* out);  // the call stack of a waiting fibre, as walk() returns it
void append(CupyopsFault& fault, const char* format, ...) __attribute__((format(printf, 2, 3)));

// ordering.cpp
uint64_t stamp_of(const Fibre& fibre, bool atomic);
unsigned rank_in(uint64_t stamp);
unsigned thread_in(uint64_t stamp);
bool shown(uint64_t stamp, const Fibre& writer);
bool before(uint64_t stamp, bool read, const Fibre& now);
void fence(Fibre& fibre);
void exchange_clocks(const std::vector<Fibre*>& fibres, bool reads_alone);
bool before_in_global(uint64_t stamp, bool read, const Fibre& now);
void flag_read(Fibre& fibre, const Flags& flags, uintptr_t flag);
void flag_written(Fibre& fibre, Flags& flags, uintptr_t flag);
unsigned tick(Fibre& fibre);
void learn(Clocks& clocks, const Clocks& more);

// The bits of a stamp of an access to shared memory: valid 1, atomic 1, rank 4, thread 10, epoch 20, phase 12, clock
// 16.
constexpr uint64_t VALID = 1ull << 63, ATOMIC = 1ull << 62;

// The bits of a stamp of an access to global memory: atomic 1, group 25, rank 4, thread 10, clock 24. The stamp names
// the group, since the stamp may outlive the group. Clocks begin at 1, so 0 stands for no access.
constexpr unsigned GROUP_AT = 38, RANK_AT = 34, THREAD_AT = 24;
constexpr uint64_t GLOBAL_ATOMIC = 1ull << 63, LAST_CLOCK = (1u << THREAD_AT) - 1, GROUPS = 1u << 25;
inline unsigned group_in(uint64_t stamp) { return unsigned(stamp >> GROUP_AT & (GROUPS - 1)); }

// global.cpp
void forget_global_memory();  // forgets all accesses: a launch is ordered after the previous launch
void global_access(const char* p, size_t bytes, Access kind, uintptr_t frame, uintptr_t pc);
[[noreturn]] void raise_held();
// Reports a held race. The runtime calls settle() first on every entry: the thread's last store is in memory by then.
inline void settle() { if (machine.held) raise_held(); }

// checks.cpp
CupyopsFault& access_fault(int kind, const void* p, size_t bytes, bool write, uintptr_t frame, uintptr_t pc);
void find_memory(const CupyopsModule* module);
Shadow* take_shadow();
void give_shadow_back(Shadow* shadow);

}  // namespace simulator
