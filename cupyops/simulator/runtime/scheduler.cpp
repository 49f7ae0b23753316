// Runs the blocks of a grid one after the other, and the threads of a block as fibres. A thread runs until it waits for
// other threads, or ends. The next thread reuses the stack of a thread that has ended. If all started blocks wait for a
// block that has not started (at a barrier of the grid), the next block starts while the waiting blocks stay alive.
#include "machine.h"
#include "switch.h"

#include <algorithm>
#include <new>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

namespace simulator {

Machine machine;

namespace {

std::vector<Stack> free_stacks;
pthread_t runner;
volatile sig_atomic_t due = 0, protected_now = 0;  // whether a pause is due; whether the thread must not be left now
void *host_sp = nullptr, *paused_sp = nullptr;     // Python's stack, and the stack that a pause has left
Stack scheduler_stack{};
bool finished = false;  // the scheduler has returned

void set(void* variable, CupyopsIndex value) { memcpy(variable, &value, sizeof value); }

constexpr size_t PAGE = 16384, EACH = STACK_BYTES + PAGE, STACKS = 32, STAGGER = 64;  // of a chunk of stacks
constexpr size_t KEPT_CHUNKS = 64;  // chunks that the next launch finds again
std::vector<char*> chunks;
// Each guard page that mprotect makes splits a mapping, and a process has at most vm.max_map_count mappings, 65530 by default.
constexpr size_t SPLITTING_GUARDS = 8192;
size_t splitting_guards = 0;
bool guards = true;
bool overrun = false;  // a thread has overrun an unguarded stack

// Protects the page below a stack. Returns false if the process would have too many mappings.
bool guard(char* page, bool needed) {
    constexpr int GUARD_INSTALL = 102;  // MADV_GUARD_INSTALL of Linux 6.13: a guard page that splits no mapping
    if (guards && madvise(page, PAGE, GUARD_INSTALL) == 0) return true;
    if (((!guards || splitting_guards >= SPLITTING_GUARDS) && !needed) || mprotect(page, PAGE, PROT_NONE) != 0) return false;
    ++splitting_guards;
    return true;
}

// The words after the top of the stack below an unguarded stack. An overflow of the unguarded stack writes there first.
constexpr size_t CANARY_WORDS = 8;
constexpr uint64_t CANARY = 0x5AFE57AC5AFE57ACull;

void add_chunk() {
    void* memory = mmap(nullptr, EACH * STACKS, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    chunks.push_back(static_cast<char*>(memory));
    for (size_t i = 0; i < STACKS; ++i) {
        char* const page = chunks.back() + i * EACH;
        const bool guarded = guard(page, i == 0) || i == 0;
        for (size_t k = 0; !guarded && k < CANARY_WORDS; ++k) memcpy(page - (k + 1) * sizeof CANARY, &CANARY, sizeof CANARY);
        // At one offset in every stack, the frames of all fibres would share a few sets of the CPU's caches.
        free_stacks.push_back(Stack{page + PAGE, page + EACH - CANARY_WORDS * sizeof CANARY - i * STAGGER, guarded});
    }
}

Stack take_stack() {
    if (free_stacks.empty()) add_chunk();
    Stack stack = free_stacks.back();
    free_stacks.pop_back();
    return stack;
}

// Frees the stacks of a launch with very many threads, and those whose canaries are dead. No thread may be alive.
void drop_stacks() {
    if (chunks.size() <= KEPT_CHUNKS && !overrun) return;
    overrun = false;
    for (char* chunk : chunks) munmap(chunk, EACH * STACKS);
    chunks.clear();
    free_stacks.clear();
    scheduler_stack = Stack{};
    splitting_guards = 0;
}

bool overflowed(const Fibre& fibre) {
    const char* const page = fibre.stack.low - PAGE;
    for (size_t k = 0; !fibre.stack.guarded && k < CANARY_WORDS; ++k)
        if (memcmp(page - (k + 1) * sizeof CANARY, &CANARY, sizeof CANARY)) return true;
    return false;
}

const char TOO_DEEP[] = "needs a deeper stack than a thread has";

void thread_main() {
    const CupyopsLaunch& launch = *machine.launch;
    launch.module->entry(launch.arguments);
    cupyops_exit();
}

void bring_in(Block& block) {
    if (machine.live == &block) return;
    if (machine.live && machine.live->saved) {
        memcpy(machine.live->saved, machine.arena, machine.launch->module->shared_end);
        memcpy(machine.live->saved + STATIC_BYTES, machine.arena + STATIC_BYTES, machine.launch->dynamic_shared);
    }
    if (block.saved) {
        memcpy(machine.arena, block.saved, machine.launch->module->shared_end);
        memcpy(machine.arena + STATIC_BYTES, block.saved + STATIC_BYTES, machine.launch->dynamic_shared);
    } else {
        // Unwritten shared memory has all bits set: floats are NaN, and integers used as indices are out of bounds.
        memset(machine.arena, 0xFF, machine.launch->module->shared_end);
        memset(machine.arena + STATIC_BYTES, 0xFF, machine.launch->dynamic_shared);
    }
    machine.live = &block;
    set(machine.launch->module->block_index, block.index);
}

void run(Fibre& fibre) {
    Block& block = *fibre.block;
    bring_in(block);
    block.begun = true;
    if (fibre.state == State::NEW) {
        fibre.stack = take_stack();
        fibre.sp = prepare_stack(fibre.stack.top, size_t(fibre.stack.top - fibre.stack.low), thread_main);
        fibre.state = State::READY;
    }
    set(machine.launch->module->thread_index, fibre.index);
    fibre.spun = false;
    machine.current = &fibre;
    cupyops_switch(&machine.scheduler_sp, fibre.sp);
    if (!machine.outcome && overflowed(fibre)) {
        append(begin_fault(CUPYOPS_SIGNAL), TOO_DEEP);
        machine.outcome = 1;
        overrun = true;
    }
    machine.current = nullptr;
    if (fibre.state == State::DONE) {
        free_stacks.push_back(fibre.stack);
        thread_ended(fibre);
    }
}

size_t threads_alive() {
    size_t alive = 0;
    for (auto& group : machine.active) alive += group->blocks.size() * machine.threads;
    return alive;
}

// Threads that an H200 can have at once: 132 multiprocessors with 2048 threads each.
size_t most_threads = 132 * 2048;

void begin_group() {
    const CupyopsLaunch& launch = *machine.launch;
    const unsigned* cluster = launch.module->cluster;
    const size_t alive = threads_alive();
    if (alive > most_threads) {
        CupyopsFault& fault = begin_fault(CUPYOPS_LIMIT);
        place(fault, machine.active[0]->blocks[0]->fibres[0]);
        append(fault, "%u threads wait for blocks that have not begun, and an H200 has room for %u threads at once: the launch would wait for ever. Launch fewer blocks", unsigned(alive), unsigned(most_threads));
        machine.outcome = 1;
        return;
    }
    auto group = std::make_unique<Group>();
    const unsigned long long number = machine.next_group++;
    group->number = unsigned(number - machine.first_group);
    const unsigned size = cluster[0] * cluster[1] * cluster[2];
    for (auto& clocks : group->cluster_clocks) clocks.resize(size_t(size) * machine.threads);
    for (unsigned rank = 0; rank < size; ++rank) {
        auto block = std::make_unique<Block>();
        block->index = block_index(number, rank);
        block->rank = rank;
        block->group = group.get();
        block->fibres.resize(machine.threads);
        for (unsigned t = 0; t < machine.threads; ++t) {
            Fibre& fibre = block->fibres[t];
            fibre.block = block.get();
            fibre.thread = t;
            fibre.index = {t % launch.block[0], t / launch.block[0] % launch.block[1], t / launch.block[0] / launch.block[1]};
            fibre.name = uint64_t(group->number) << GROUP_AT | uint64_t(rank) << RANK_AT | uint64_t(t) << THREAD_AT;
            fibre.clocks[0][fibre.lane()] = fibre.clocks[1][fibre.lane()] = 1;
        }
        if (launch.checked > CUPYOPS_BOUNDS) block->shadow = take_shadow();
        group->blocks.push_back(std::move(block));
    }
    machine.active.push_back(std::move(group));
}

// Allocates memory for each block's shared memory, since several blocks are alive and take turns in the arena.
void give_places() {
    for (auto& group : machine.active) {
        if (group->saved) continue;
        group->saved_bytes = ARENA_BYTES * group->blocks.size();
        group->saved.reset(new char[group->saved_bytes]);
        for (size_t i = 0; i < group->blocks.size(); ++i) {
            Block& block = *group->blocks[i];
            char* place = group->saved.get() + i * ARENA_BYTES;
            memset(place, 0xFF, machine.launch->module->shared_end);
            memset(place + STATIC_BYTES, 0xFF, machine.launch->dynamic_shared);
            block.saved = place;
        }
    }
}

}  // namespace

Block::~Block() {
    if (shadow) give_shadow_back(shadow);
}

namespace {

bool runnable(const Fibre& fibre) { return fibre.state == State::NEW || fibre.state == State::READY; }

// Gives the processor to Python, and returns when Python continues the launch. The running thread stays the running thread.
void pause() {
    due = 0;
    cupyops_switch(&paused_sp, host_sp);
}

// Runs every runnable thread once. Sets `ran` if a thread ran, and `advanced` if a thread did more than poll.
void pass(bool& ran, bool& advanced) {
    for (size_t g = 0; g < machine.active.size(); ++g) {
        for (auto& block : machine.active[g]->blocks) {
            for (Fibre& fibre : block->fibres) {
                if (!runnable(fibre)) continue;
                run(fibre);
                ran = true;
                advanced |= !fibre.spun;
                if (machine.outcome) return;
                if (due) pause();
            }
        }
    }
}

void drop_finished() {
    for (size_t g = machine.active.size(); g-- > 0;) {
        bool ended = true;
        for (auto& block : machine.active[g]->blocks) ended &= block->ended();
        if (!ended) continue;
        machine.finished_blocks += machine.active[g]->blocks.size();
        for (auto& block : machine.active[g]->blocks)
            if (machine.live == block.get()) machine.live = nullptr;
        machine.active.erase(machine.active.begin() + static_cast<long>(g));
    }
}

// Returns a hash of all threads' stacks, which hold the registers of waiting threads.
uint64_t picture() {
    uint64_t sum = 0;
    for (auto& group : machine.active)
        for (auto& block : group->blocks)
            for (const Fibre& fibre : block->fibres) {
                sum = sum * 31 + uint64_t(fibre.state);
                if (fibre.state == State::NEW || fibre.state == State::DONE) continue;
                const char* const top = fibre.stack.top;
                for (const char* p = static_cast<const char*>(fibre.sp); p + 8 <= top; p += 8) {
                    uint64_t word;
                    memcpy(&word, p, 8);
                    sum = (sum ^ word) * 0x9E3779B97F4A7C15ull;
                    sum ^= sum >> 29;
                }
            }
    return sum;
}

void simulate() {
    constexpr unsigned PATIENCE = 16;  // passes in which all threads only poll, before another block starts
    unsigned idle = 0, alike = 0;
    uint64_t last_picture = 0, last_changes = 0;
    while (!machine.outcome) {
        drop_finished();
        if (machine.active.empty()) {
            if (machine.next_group >= machine.groups) return;
            begin_group();
            if (machine.active[0]->blocks.size() > 1) give_places();
        }
        if (due) pause();
        bool ran = false, advanced = false;
        pass(ran, advanced);
        if (machine.outcome) return;
        idle = advanced || !ran ? 0 : idle + 1;
        if (!ran) {
            bool ended = true;
            for (auto& group : machine.active)
                for (auto& block : group->blocks) ended &= block->ended();
            if (!ended && !resolve_active_masks()) explain_standstill();
        } else if (idle >= PATIENCE && machine.next_group < machine.groups) {
            // Twice as many blocks: a barrier of many blocks, which all poll, would take a time that grows with their square.
            idle = 0;
            size_t more = machine.active.size();
            do begin_group();
            while (--more && !machine.outcome && machine.next_group < machine.groups && threads_alive() <= most_threads);
            if (!machine.outcome) give_places();
        }
#ifdef CUPYOPS_ALL_ON_STACK
        else if (idle > PATIENCE && machine.launch->checked) {
            // A pass that changes neither memory nor any thread's stack repeats for ever: the launch is in a deadlock.
            const uint64_t now = picture();
            alike = now == last_picture && machine.changes == last_changes ? alike + 1 : 0;
            last_picture = now, last_changes = machine.changes;
            machine.frozen = alike > 2;
        }
#endif
    }
}

void tell_of_memory() {
    append(begin_fault(CUPYOPS_LIMIT), "the host has too little memory for the %u threads that run at once. Launch fewer blocks", std::max(unsigned(threads_alive()), machine.threads));
    machine.outcome = 1;
}

// Runs the launch, on a stack of its own.
void scheduler_main() {
    try {
        simulate();
    } catch (const std::bad_alloc&) {
        tell_of_memory();
    }
    machine.current = nullptr;
    finished = true;
    for (;;) pause();
}

// Called by `operator new` where the host has no more memory. A C++ exception cannot leave a thread of the launch.
std::new_handler other_handler;
void no_memory() {
    if (!machine.current || !pthread_equal(pthread_self(), runner)) {
        if (other_handler) return other_handler();
        throw std::bad_alloc();
    }
    tell_of_memory();
    abandon(1);
}

// Signals.

const int FAULTS[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP};
constexpr int TICK = SIGURG;  // a signal that does nothing in a program that does not ask for it
struct sigaction old_actions[NSIG];

struct Registers { uintptr_t pc, frame, sp; };

Registers registers(void* context) {
#if defined(__x86_64__)
    const auto& at = static_cast<const ucontext_t*>(context)->uc_mcontext.gregs;
    return {uintptr_t(at[REG_RIP]), uintptr_t(at[REG_RBP]), uintptr_t(at[REG_RSP])};
#elif defined(__aarch64__)
    const auto& at = static_cast<const ucontext_t*>(context)->uc_mcontext;
    return {at.pc, at.regs[29], at.sp};
#else
    (void)context;
    return {0, 0, 0};
#endif
}

// Records the call stack of a thread that a signal has stopped.
void set_frames(CupyopsFault& fault, const Registers& at) {
    uintptr_t pc = at.pc;
#if defined(__x86_64__)
    // A call of an address without code: the line is that of the return address.
    const uintptr_t low = reinterpret_cast<uintptr_t>(machine.current->stack.low);
    if (pc == fault.address && at.sp >= low && at.sp < low + STACK_BYTES - 16) pc = *reinterpret_cast<const uintptr_t*>(at.sp) - 1;
#endif
    fault.frames[0] = pc + 1;
    fault.frame_count = 1 + walk(*machine.current, at.frame, fault.frames + 1);
}

Registers stopped{};  // of the thread that paused in its own code; pc 0 for a pause elsewhere

void leave() {
    void* nowhere;
    cupyops_switch(&nowhere, machine.scheduler_sp);
}

// A thread is stopped in the code of its kernel alone: elsewhere it may hold a lock of the C library.
void on_tick(int, siginfo_t*, void* context) {
    due = 1;
    if (!pthread_equal(pthread_self(), runner) || !machine.current || protected_now) return;
    const Registers at = registers(context);
    if (at.pc < machine.launch->module->code || at.pc >= machine.launch->module->code_end) return;
    stopped = at;
    pause();
    stopped = {};
}

void on_fault(int signal, siginfo_t* info, void* context) {
    if (!machine.current || !pthread_equal(pthread_self(), runner)) {
        sigaction(signal, &old_actions[signal], nullptr);  // not a kernel's fault: the instruction faults again, and the former handler runs
        return;
    }
    CupyopsFault& fault = begin_fault(CUPYOPS_SIGNAL);
    fault.address = reinterpret_cast<uintptr_t>(info->si_addr);
    const uintptr_t low = reinterpret_cast<uintptr_t>(machine.current->stack.low);
    // An unguarded stack runs into the stacks below it, and then into the guard page of their chunk.
    const bool below = fault.address < low && low - fault.address <= (machine.current->stack.guarded ? PAGE : EACH * STACKS);
    const Registers at = registers(context);
    if (signal == SIGFPE) append(fault, "divides an integer by zero, or the smallest one by -1");
    else if (signal == SIGILL || signal == SIGTRAP) append(fault, "runs into a trap, as __builtin_trap() is");
    else if (below || (at.sp && at.sp < low && low - at.sp <= EACH * STACKS)) append(fault, TOO_DEEP), overrun = true;
    else append(fault, "touches address %p, which holds no memory", info->si_addr);
    if (protected_now) fault.frame_count = waiting_frames(*machine.current, fault.frames);
    else set_frames(fault, at);
    abandon(1);
}

void take(int signal, void (*handler)(int, siginfo_t*, void*), int flags) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = handler;
    action.sa_flags = SA_SIGINFO | SA_NODEFER | flags;  // SA_NODEFER, since abandon() never returns to the handler
    sigemptyset(&action.sa_mask);
    sigaction(signal, &action, &old_actions[signal]);
}

// Sends the signal of a pause to this thread every 50 ms.
struct Ticking {
    int timer = 0;
    bool on = false;
    Ticking() {
        sigevent event;
        memset(&event, 0, sizeof event);
        event.sigev_notify = SIGEV_THREAD_ID;
        event.sigev_signo = TICK;
        event._sigev_un._tid = int(syscall(SYS_gettid));
        on = syscall(SYS_timer_create, CLOCK_MONOTONIC, &event, &timer) == 0;
        const itimerspec every = {{0, 50000000}, {0, 50000000}};
        if (on) syscall(SYS_timer_settime, timer, 0, &every, nullptr);
    }
    ~Ticking() {
        if (on) syscall(SYS_timer_delete, timer);
    }
};

}  // namespace

char* arena() {
    if (!machine.arena) {
        void* memory = mmap(nullptr, ARENA_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        machine.arena = memory == MAP_FAILED ? nullptr : static_cast<char*>(memory);
    }
    return machine.arena;
}

CupyopsIndex block_index(unsigned long long group, unsigned rank) {
    const CupyopsLaunch& launch = *machine.launch;
    const unsigned* cluster = launch.module->cluster;
    const unsigned across = launch.grid[0] / cluster[0], down = launch.grid[1] / cluster[1];
    const unsigned x = unsigned(group % across), y = unsigned(group / across % down), z = unsigned(group / across / down);
    return {x * cluster[0] + rank % cluster[0], y * cluster[1] + rank / cluster[0] % cluster[1], z * cluster[2] + rank / cluster[0] / cluster[1]};
}

void uninterrupted(bool on) { protected_now = on; }

void pause_at(uintptr_t frame) {
    if (!due || protected_now) return;
    machine.current->waiting_frame = frame;
    pause();
}

void give_way() {
    settle();
    cupyops_switch(&machine.current->sp, machine.scheduler_sp);
}

void wait_here(Fibre& fibre, State state) {
    fibre.state = state;
    give_way();
}

void abandon(int outcome) {
    machine.outcome = outcome;
    leave();
    __builtin_unreachable();
}

}  // namespace simulator

using namespace simulator;

extern "C" {

void cupyops_begin(const CupyopsLaunch* launch) {
    memset(&fault_record, 0, sizeof fault_record);
    const unsigned* cluster = launch->module->cluster;
    machine.launch = launch;
    ++machine.launches;
    machine.live = nullptr;
    machine.current = nullptr;
    machine.finished_blocks = 0;
    machine.groups = 1;
    for (int d = 0; d < 3; ++d) machine.groups *= launch->grid[d] / cluster[d];
    const unsigned size = cluster[0] * cluster[1] * cluster[2];
    machine.next_group = machine.first_group = launch->first_block / size;
    if (launch->end_block / size < machine.groups) machine.groups = launch->end_block / size;
    machine.threads = launch->block[0] * launch->block[1] * launch->block[2];
    machine.outcome = 0;
    machine.frozen = machine.held = false;
    set(launch->module->block_dim, {launch->block[0], launch->block[1], launch->block[2]});
    set(launch->module->grid_dim, {launch->grid[0], launch->grid[1], launch->grid[2]});
    due = protected_now = 0;
    finished = false;
    try {
        if (!arena()) throw std::bad_alloc();
        find_memory(launch->module);
        if (launch->checked > CUPYOPS_BOUNDS) forget_global_memory();
        if (!scheduler_stack.low) scheduler_stack = take_stack();
        paused_sp = prepare_stack(scheduler_stack.top, size_t(scheduler_stack.top - scheduler_stack.low), scheduler_main);
    } catch (const std::bad_alloc&) {
        tell_of_memory();
        finished = true;
    }
}

int cupyops_continue() {
    if (finished) return machine.outcome;
    runner = pthread_self();
    static char alternate[65536];
    stack_t other, before;
    memset(&other, 0, sizeof other);
    other.ss_sp = alternate;
    other.ss_size = sizeof alternate;
    sigaltstack(&other, &before);
    for (int signal : FAULTS) take(signal, on_fault, SA_ONSTACK);
    take(TICK, on_tick, SA_RESTART);
    other_handler = std::set_new_handler(no_memory);
    {
        Ticking ticking;
        cupyops_switch(&host_sp, paused_sp);
    }
    std::set_new_handler(other_handler);
    sigaction(TICK, &old_actions[TICK], nullptr);
    for (int signal : FAULTS) sigaction(signal, &old_actions[signal], nullptr);
    sigaltstack(&before, nullptr);
    return finished ? machine.outcome : 2;
}

void cupyops_where() {
    CupyopsFault& fault = begin_fault(CUPYOPS_LIMIT);
    const Fibre* fibre = machine.current;
    for (auto& group : machine.active)
        for (auto& block : group->blocks)
            for (const Fibre& one : block->fibres)
                if (!fibre && one.state != State::DONE) fibre = &one;
    if (!fibre) return;
    place(fault, *fibre);
    if (machine.current && stopped.pc) set_frames(fault, stopped);
    else fault.frame_count = waiting_frames(*fibre, fault.frames);
    append(fault, "%s", inventory(*fibre->block).c_str());
}

void cupyops_limits(int with_guards, size_t threads) { guards = with_guards, most_threads = threads; }

unsigned long long cupyops_finished() { return machine.finished_blocks; }

void cupyops_end() {
    // Frees the stacks of threads that had not ended when the launch ended.
    for (auto& group : machine.active)
        for (auto& block : group->blocks)
            for (Fibre& fibre : block->fibres)
                if (fibre.state != State::NEW && fibre.state != State::DONE && fibre.stack.low) free_stacks.push_back(fibre.stack);
    machine.active.clear();
    machine.flags.clear();
    forget_global_memory();
    machine.live = nullptr;
    machine.current = nullptr;
    machine.held = false;
    drop_stacks();
}

void cupyops_exit() {
    settle();
    machine.current->state = State::DONE;
    give_way();
    __builtin_unreachable();
}

void cupyops_spin() {
    Fibre& fibre = *machine.current;
    if (++fibre.spins < 32) return;
    WAITS_HERE(fibre);
    fibre.spins = 0;
    fibre.spun = true;
    give_way();
    if (machine.frozen) frozen(__builtin_frame_address(0));
}

int cupyops_here(CupyopsHere* here) {
    const Fibre* const fibre = machine.current;
    if (!fibre) return 0;
    const Block& block = *fibre->block;
    *here = {fibre, fibre->stack.low, block.group->number * block.group->blocks.size() + block.rank, fibre->thread};
    return 1;
}

void cupyops_pause() { give_way(); }

unsigned long long cupyops_clock() {
    ++machine.changes;
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return 1000000000ull * static_cast<unsigned long long>(now.tv_sec) + static_cast<unsigned long long>(now.tv_nsec);
}
}
