// Runs the blocks of a grid one after the other, and the threads of a block as fibres. A thread runs until it waits for
// other threads, or ends. The next thread reuses the stack of a thread that has ended. If all started blocks wait for a
// block that has not started (at a barrier of the grid), the next block starts while the waiting blocks stay alive.
#include "machine.h"
#include "switch.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

namespace simulator {

Machine machine;

namespace {

std::vector<Stack> free_stacks;
pthread_t runner;
volatile sig_atomic_t interrupted = 0, protected_now = 0;

void set(void* variable, CupyopsIndex value) { memcpy(variable, &value, sizeof value); }

Stack take_stack() {
    if (free_stacks.empty()) {
        constexpr size_t PAGE = 16384, EACH = STACK_BYTES + PAGE, COUNT = 32, STAGGER = 64;
        void* memory = mmap(nullptr, EACH * COUNT, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED) return Stack{nullptr, nullptr};
        for (size_t i = 0; i < COUNT; ++i) {
            char* low = static_cast<char*>(memory) + i * EACH;
            mprotect(low, PAGE, PROT_NONE);  // may fail if the process has too many mappings; the stack then has no guard page
            // At one offset in every stack, the frames of all fibres would share a few sets of the CPU's caches.
            free_stacks.push_back(Stack{low + PAGE, low + EACH - i * STAGGER});
        }
    }
    Stack stack = free_stacks.back();
    free_stacks.pop_back();
    return stack;
}

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
        if (!fibre.stack.low) {
            CupyopsFault& fault = begin_fault(CUPYOPS_LIMIT);
            append(fault, "the host has too little memory for the stacks of all running threads");
            machine.outcome = 1;
            return;
        }
        fibre.sp = prepare_stack(fibre.stack.top, size_t(fibre.stack.top - fibre.stack.low), thread_main);
        fibre.state = State::READY;
    }
    set(machine.launch->module->thread_index, fibre.index);
    fibre.spun = false;
    machine.current = &fibre;
    cupyops_switch(&machine.scheduler_sp, fibre.sp);
    machine.current = nullptr;
    if (fibre.state == State::DONE) {
        free_stacks.push_back(fibre.stack);
        thread_ended(fibre);
    }
}

void begin_group() {
    const CupyopsLaunch& launch = *machine.launch;
    const unsigned* cluster = launch.module->cluster;
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
        if (launch.checked) block->shadow = take_shadow();
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

bool time_to_tell() {
    static time_t last = 0;
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (now.tv_sec == last) return false;
    last = now.tv_sec;
    return true;
}

// Runs every runnable thread once. Sets `ran` if a thread ran, and `advanced` if a thread did more than poll.
void pass(bool& ran, bool& advanced) {
    unsigned since = 0;
    for (size_t g = 0; g < machine.active.size(); ++g) {
        for (auto& block : machine.active[g]->blocks) {
            for (Fibre& fibre : block->fibres) {
                if (!runnable(fibre)) continue;
                run(fibre);
                ran = true;
                advanced |= !fibre.spun;
                if (interrupted) machine.outcome = 2;
                if (machine.outcome) return;
                if (++since % 64 == 0 && time_to_tell() && machine.launch->progress &&
                    machine.launch->progress(machine.finished_blocks)) {
                    machine.outcome = 2;
                    return;
                }
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
            idle = 0;
            begin_group();
            give_places();
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

// Signals.

struct sigaction old_interrupt, old_segv, old_bus, old_fpe, old_ill;

void leave() {
    void* nowhere;
    cupyops_switch(&nowhere, machine.scheduler_sp);
}

void on_interrupt(int signal, siginfo_t*, void*) {
    interrupted = 1;
    if (!pthread_equal(pthread_self(), runner)) {
        pthread_kill(runner, signal);
        return;
    }
    // A fibre that never yields would never read `interrupted`, so the handler switches away from the fibre.
    if (machine.current && !protected_now) {
        machine.outcome = 2;
        leave();
    }
}

void on_fault(int signal, siginfo_t* info, void* context) {
    if (!machine.current || !pthread_equal(pthread_self(), runner)) {
        const struct sigaction* old = signal == SIGSEGV ? &old_segv : signal == SIGBUS ? &old_bus : signal == SIGFPE ? &old_fpe : &old_ill;
        sigaction(signal, old, nullptr);  // not a kernel's fault: the instruction faults again, and the former handler runs
        return;
    }
    CupyopsFault& fault = begin_fault(CUPYOPS_SIGNAL);
    fault.address = reinterpret_cast<uintptr_t>(info->si_addr);
    const uintptr_t low = reinterpret_cast<uintptr_t>(machine.current->stack.low);
    if (signal == SIGFPE) append(fault, "divides an integer by zero, or the smallest one by -1");
    else if (fault.address < low && low - fault.address <= 16384) append(fault, "needs a deeper stack than a thread has");
    else append(fault, "touches address %p, which holds no memory", info->si_addr);
    uintptr_t pc = 0, frame = 0;
#if defined(__x86_64__)
    const ucontext_t* at = static_cast<const ucontext_t*>(context);
    pc = uintptr_t(at->uc_mcontext.gregs[REG_RIP]), frame = uintptr_t(at->uc_mcontext.gregs[REG_RBP]);
#elif defined(__aarch64__)
    const ucontext_t* at = static_cast<const ucontext_t*>(context);
    pc = at->uc_mcontext.pc, frame = at->uc_mcontext.regs[29];
#else
    (void)context;
#endif
    fault.frames[0] = pc + 1;
    fault.frame_count = 1 + walk(*machine.current, frame, fault.frames + 1);
    machine.outcome = 1;
    leave();
}

void take(int signal, void (*handler)(int, siginfo_t*, void*), int flags, struct sigaction& old) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = handler;
    action.sa_flags = SA_SIGINFO | SA_NODEFER | flags;  // SA_NODEFER, since leave() may never return to the handler
    sigemptyset(&action.sa_mask);
    sigaction(signal, &action, &old);
}

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

int cupyops_run(const CupyopsLaunch* launch) {
    memset(&fault_record, 0, sizeof fault_record);
    arena();
    const unsigned* cluster = launch->module->cluster;
    machine.launch = launch;
    ++machine.launches;
    machine.live = nullptr;
    machine.current = nullptr;
    machine.active.clear();
    machine.next_group = machine.finished_blocks = 0;
    machine.groups = 1;
    for (int d = 0; d < 3; ++d) machine.groups *= launch->grid[d] / cluster[d];
    const unsigned size = cluster[0] * cluster[1] * cluster[2];
    machine.next_group = machine.first_group = launch->first_block / size;
    if (launch->end_block / size < machine.groups) machine.groups = launch->end_block / size;
    machine.threads = launch->block[0] * launch->block[1] * launch->block[2];
    machine.outcome = 0;
    machine.frozen = machine.held = false;
    machine.flags.clear();
    set(launch->module->block_dim, {launch->block[0], launch->block[1], launch->block[2]});
    set(launch->module->grid_dim, {launch->grid[0], launch->grid[1], launch->grid[2]});
    if (launch->checked) find_memory(launch->module), forget_global_memory();

    runner = pthread_self();
    interrupted = 0;
    protected_now = 0;
    static char alternate[65536];
    stack_t other, before;
    memset(&other, 0, sizeof other);
    other.ss_sp = alternate;
    other.ss_size = sizeof alternate;
    sigaltstack(&other, &before);
    take(SIGINT, on_interrupt, 0, old_interrupt);
    const bool ignored = !(old_interrupt.sa_flags & SA_SIGINFO) && old_interrupt.sa_handler == SIG_IGN;
    if (ignored) sigaction(SIGINT, &old_interrupt, nullptr);
    take(SIGSEGV, on_fault, SA_ONSTACK, old_segv);
    take(SIGBUS, on_fault, SA_ONSTACK, old_bus);
    take(SIGFPE, on_fault, SA_ONSTACK, old_fpe);
    take(SIGILL, on_fault, SA_ONSTACK, old_ill);
    simulate();
    machine.current = nullptr;
    sigaction(SIGILL, &old_ill, nullptr);
    sigaction(SIGFPE, &old_fpe, nullptr);
    sigaction(SIGBUS, &old_bus, nullptr);
    sigaction(SIGSEGV, &old_segv, nullptr);
    sigaction(SIGINT, &old_interrupt, nullptr);
    sigaltstack(&before, nullptr);

    // Frees the stacks of threads that had not ended when the launch ended.
    for (auto& group : machine.active)
        for (auto& block : group->blocks)
            for (Fibre& fibre : block->fibres)
                if (fibre.state != State::NEW && fibre.state != State::DONE && fibre.stack.low) free_stacks.push_back(fibre.stack);
    machine.active.clear();
    machine.flags.clear();
    if (launch->checked) forget_global_memory();
    machine.live = nullptr;
    return machine.outcome;
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
