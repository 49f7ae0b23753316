// The parts of the runtime: blocks, threads as fibres, and what they wait for.
#pragma once
#include "abi.h"

#include <memory>
#include <unordered_map>
#include <vector>

namespace simulator {

constexpr unsigned WARP = 32;
constexpr unsigned MAX_CLUSTER = 16;
constexpr unsigned MAX_THREADS = 1024;
// Shared memory of a block: static variables, each with a gap behind it, then the dynamic part.
constexpr size_t STATIC_BYTES = 256 * 1024, DYNAMIC_BYTES = 256 * 1024, ARENA_BYTES = STATIC_BYTES + DYNAMIC_BYTES;
constexpr size_t STACK_BYTES = 256 * 1024;

// Clocks of all threads of a group, and of the groups that a thread knows of, by their numbers. Shared, since threads that have
// met know the same.
struct GroupClocks {
    unsigned group;
    std::shared_ptr<const std::vector<unsigned>> clocks;
};
typedef std::shared_ptr<const std::vector<GroupClocks>> Clocks;

// What was known when a flag was last written behind a fence.
struct Told {
    Clocks known[2];
    unsigned version = 0;
};
typedef std::unordered_map<uintptr_t, Told> Flags;

struct Stack {
    char* low;  // the lowest usable byte; below it is a page that nobody may touch
    char* top() const { return low + STACK_BYTES; }
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
    bool spun = false;      // it gave way because it may be waiting, not because it got somewhere
    unsigned spins = 0;
    // What it waits for, and what it was given.
    int operation = 0;
    unsigned mask = 0;
    unsigned long long value = 0;
    int lane_argument = 0, width = WARP, predicate = 0;
    uintptr_t waiting_frames[CUPYOPS_FRAMES];
    unsigned waiting_frame_count = 0;
    // Clocks by which accesses are ordered.
    unsigned epoch = 0;              // barriers of the block that it has passed
    unsigned arrived = 0, waited = 0;  // barriers of the cluster
    uint64_t relaxed = 0;            // of the last 64 arrivals, which release nothing
    // What it knows of others, twice: of all that they did, and of what they read alone. A shuffle tells of reads, whose
    // values have come before it; it orders no writes.
    unsigned clocks[2][WARP] = {};    // of the lanes of its warp; its own counts what it has told
    Clocks known[2];                  // of all threads of the cluster, and of other groups, learnt by flags
    Clocks fenced[2];                 // at its last fence, and at those of threads that it has met since: what it tells by a flag
    uintptr_t flag = 0;               // the one that it read last,
    unsigned flag_version = 0;        // as it was then: who waits asks again and again
    unsigned barrier_clock = 0;       // its own when it last met its block,
    unsigned arrive_clock = 0, cluster_clocks[2] = {};  // and its cluster: in the phases of even and of odd number
    unsigned shown = 0;  // the hardware sees what it wrote before its clock was this
    uint64_t name = 0;   // of the thread in its launch, where a stamp for global memory has it

    Clocks& handed_on(int which) { return which < 2 ? known[which] : fenced[which - 2]; }  // where threads meet
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
    std::unordered_map<unsigned, unsigned> meeting;               // threads at each barrier with a number
    std::unordered_map<unsigned, std::unique_ptr<char[]>> kept;  // what twins of the hardware keep
    bool begun = false;
    char* saved = nullptr;  // its shared memory while another block of the cluster runs
    Shadow* shadow = nullptr;
    ~Block();
    bool ended() const { return done == fibres.size(); }
};

// The blocks of a cluster, which live together; mostly one.
struct Group {
    unsigned number = 0;  // in the order in which they begin
    std::vector<std::unique_ptr<Block>> blocks;
    std::unique_ptr<char[]> saved;
    size_t saved_bytes = 0;
    unsigned arrivals = 0;  // in the current phase of the cluster's barrier
    unsigned phase = 0;     // phases completed
    // What those who arrive have learnt by flags, and have fenced; who waits learns it, by phase, even and odd.
    Clocks arriving[4], released[2][4];
    Flags flags;                         // in shared memory
};

struct Machine {
    const CupyopsLaunch* launch = nullptr;
    Fibre* current = nullptr;
    Block* live = nullptr;  // whose shared memory is in the arena
    void* scheduler_sp = nullptr;
    std::vector<std::unique_ptr<Group>> active;
    unsigned long long first_group = 0, next_group = 0, groups = 0, finished_blocks = 0;
    unsigned threads = 0;
    int outcome = 0;
    // How often something happened that may end a wait: memory changed, or somebody looked at a clock. Where launches are
    // checked, for plain writes cannot be seen elsewhere.
    unsigned long long changes = 0;
    bool frozen = false;  // nothing will happen any more; the next thread that waits says so
    char* arena = nullptr;
    Flags flags;        // in global memory
    bool held = false;  // a race of two writes is written down, and waits for what the second one writes
};

extern Machine machine;
extern CupyopsFault fault_record;

enum class Access { READ, WRITE, VOLATILE_READ, VOLATILE_WRITE, ATOMIC };
inline bool reads(Access kind) { return kind == Access::READ || kind == Access::VOLATILE_READ || kind == Access::ATOMIC; }
inline bool writes(Access kind) { return kind == Access::WRITE || kind == Access::VOLATILE_WRITE || kind == Access::ATOMIC; }

// scheduler.cpp
char* arena();  // where the shared memory of the block that runs lies
void give_way();                       // back to the scheduler; returns when it is this fibre's turn again
[[noreturn]] void abandon(int outcome);  // ends the launch from within a fibre
void uninterrupted(bool on);           // a signal must not take the thread away now
Fibre* lane_of(const Block& block, unsigned warp, unsigned lane);
void wait_here(Fibre& fibre, State state);
CupyopsIndex block_index(unsigned long long group, unsigned rank);  // by the number in the grid

// collectives.cpp
void thread_ended(Fibre& fibre);
bool resolve_active_masks();
void explain_standstill();

// faults.cpp
CupyopsFault& begin_fault(int kind);
void place(CupyopsFault& fault, const Fibre& fibre);
unsigned walk(const Fibre& fibre, uintptr_t frame, uintptr_t* out);
[[noreturn]] void raise_fault(CupyopsFault& fault);  // by the thread that runs
[[noreturn]] void frozen(void* frame);           // by a thread that would wait for ever
void note_frames(Fibre& fibre, void* frame, void* pc);  // where it waits
void append(CupyopsFault& fault, const char* format, ...) __attribute__((format(printf, 2, 3)));

// ordering.cpp
uint64_t stamp_of(const Fibre& fibre, bool atomic);
unsigned rank_in(uint64_t stamp);
unsigned thread_in(uint64_t stamp);
bool shown(uint64_t stamp, const Fibre& writer);
bool before(uint64_t stamp, bool read, const Fibre& now);
void fence(Fibre& fibre);
void tell_one_another(const std::vector<Fibre*>& fibres, bool reads_alone);
bool before_in_global(uint64_t stamp, bool read, const Fibre& now);
void flag_read(Fibre& fibre, const Flags& flags, uintptr_t flag);
void flag_written(Fibre& fibre, Flags& flags, uintptr_t flag);
unsigned tick(Fibre& fibre);
void learn(Clocks& clocks, const Clocks& more);

// A stamp: valid 1, atomic 1, rank 4, thread 10, epoch 20, phase 12, clock 16 bits.
constexpr uint64_t VALID = 1ull << 63, ATOMIC = 1ull << 62;

// A stamp of an access to global memory, which outlives its group: atomic 1, group 25, rank 4, thread 10, clock 24 bits. Clocks
// begin at 1, so 0 is none.
constexpr unsigned GROUP_AT = 38, RANK_AT = 34, THREAD_AT = 24;
constexpr uint64_t GLOBAL_ATOMIC = 1ull << 63, LAST_CLOCK = (1u << THREAD_AT) - 1, GROUPS = 1u << 25;
inline unsigned group_in(uint64_t stamp) { return unsigned(stamp >> GROUP_AT & (GROUPS - 1)); }

// global.cpp
void forget_global_memory();  // between two launches, which the second's begin orders
void global_access(const char* p, size_t bytes, Access kind, uintptr_t frame, uintptr_t pc);
[[noreturn]] void raise_held();
// To be called wherever the runtime is, before anything happens: what the thread stored last is in memory now.
inline void settle() { if (machine.held) raise_held(); }

// checks.cpp
CupyopsFault& access_fault(int kind, const void* p, size_t bytes, bool write, uintptr_t frame, uintptr_t pc);
void find_memory(const CupyopsModule* module);
Shadow* take_shadow();
void give_shadow_back(Shadow* shadow);

}  // namespace simulator
