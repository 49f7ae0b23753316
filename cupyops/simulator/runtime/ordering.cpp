// Which access was certainly before which: by barriers, and by flags that are written behind a fence.
#include "machine.h"

#include <algorithm>

namespace simulator {

namespace {

constexpr unsigned EPOCHS = 1u << 20, PHASES = 1u << 12, CLOCKS = 1u << 16;

size_t place_of(unsigned rank, unsigned thread) { return size_t(rank) * machine.threads + thread; }

std::shared_ptr<std::vector<unsigned>> no_clocks(const Fibre& fibre) {
    return std::make_shared<std::vector<unsigned>>(fibre.block->group->blocks.size() * machine.threads, 0u);
}

void add_known(std::vector<unsigned>& all, const Fibre& fibre, int reads) {
    if (fibre.known[reads])
        for (size_t i = 0; i < all.size(); ++i) all[i] = std::max(all[i], (*fibre.known[reads])[i]);
    for (auto& block : fibre.block->group->blocks)
        for (const Fibre& other : block->fibres) {
            unsigned& clock = all[place_of(block->rank, other.thread)];
            if (fibre.waited) clock = std::max(clock, other.cluster_clock);
            if (block.get() != fibre.block) continue;
            if (fibre.epoch) clock = std::max(clock, other.barrier_clock);
            if (other.warp() == fibre.warp()) clock = std::max(clock, fibre.clocks[reads][other.lane()]);
        }
}

}  // namespace

void learn(Clocks& clocks, const Clocks& more) {
    if (!more || clocks == more) return;
    if (!clocks) {
        clocks = more;
        return;
    }
    // The threads of a block mostly learn the same, one after the other.
    static Clocks olds[2], addeds[2], results[2];
    static int turn = 0;
    for (int i = 0; i < 2; ++i)
        if (clocks == olds[i] && more == addeds[i]) {
            clocks = results[i];
            return;
        }
    turn ^= 1;
    Clocks &old = olds[turn], &added = addeds[turn], &result = results[turn];
    old = clocks;
    added = more;
    bool less = true, greater = true;
    for (size_t i = 0; i < more->size() && (less || greater); ++i) {
        less &= (*clocks)[i] <= (*more)[i];
        greater &= (*clocks)[i] >= (*more)[i];
    }
    result = less ? more : clocks;
    if (!less && !greater) {
        auto both = std::make_shared<std::vector<unsigned>>(*clocks);
        for (size_t i = 0; i < more->size(); ++i) (*both)[i] = std::max((*both)[i], (*more)[i]);
        result = both;
    }
    clocks = result;
}

uint64_t stamp_of(const Fibre& f, bool atomic) {
    const uint64_t rank = f.block->rank, epoch = std::min(f.epoch, EPOCHS - 1), phase = std::min(f.arrived, PHASES - 1),
                   clock = std::min(f.clock(), CLOCKS - 1);
    return VALID | (atomic ? ATOMIC : 0) | rank << 58 | uint64_t(f.thread) << 48 | epoch << 28 | phase << 16 | clock;
}

unsigned rank_in(uint64_t stamp) { return unsigned(stamp >> 58) & 15; }
unsigned thread_in(uint64_t stamp) { return unsigned(stamp >> 48) & 1023; }

// Whether the thread that wrote has shown it to the hardware that copies and multiplies.
bool shown(uint64_t stamp, const Fibre& writer) {
    const unsigned clock = unsigned(stamp) & (CLOCKS - 1);
    return clock < writer.shown || clock == CLOCKS - 1;
}

// Whether an access, a read or a write, was certainly before what this thread does now. Numbers that have run out of bits count as such.
bool before(uint64_t stamp, bool read, const Fibre& now) {
    const unsigned rank = rank_in(stamp), thread = thread_in(stamp);
    const Block& here = *now.block;
    if (rank == here.rank && thread == now.thread) return true;
    const unsigned epoch = unsigned(stamp >> 28) & (EPOCHS - 1), phase = unsigned(stamp >> 16) & (PHASES - 1), clock = unsigned(stamp) & (CLOCKS - 1);
    if (clock == CLOCKS - 1 || phase == PHASES - 1) return true;
    if (rank == here.rank) {
        if (epoch < now.epoch || epoch == EPOCHS - 1) return true;
        if (thread / WARP == now.warp() && now.clocks[read][thread % WARP] >= clock) return true;
    }
    const size_t place = place_of(rank, thread);
    if (now.known[read] && (*now.known[read])[place] >= clock) return true;
    // The first arrival at the cluster's barrier behind the access that releases it, and whether this thread has waited for that.
    const Fibre& other = here.group->blocks[rank]->fibres[thread];
    unsigned arrival = phase;
    while (arrival < other.arrived && other.arrived - arrival <= 64 && (other.relaxed >> (other.arrived - arrival - 1) & 1)) ++arrival;
    return arrival < other.arrived && arrival < now.waited;
}

// The thread has told others of what it did until now, which is told apart from what it does from now on.
unsigned tick(Fibre& fibre) {
    ++fibre.clocks[1][fibre.lane()];
    return fibre.clocks[0][fibre.lane()]++;
}

// What the thread knows now: what it has learnt by flags, its warp's clocks, its block's and its cluster's at the barriers.
void fence(Fibre& fibre) {
    for (int reads = 0; reads < 2; ++reads) {
        auto told = no_clocks(fibre);
        add_known(*told, fibre, reads);
        fibre.fenced[reads] = told;
    }
    tick(fibre);
}

void tell_one_another(const std::vector<Fibre*>& fibres, bool reads_alone) {
    for (int reads = reads_alone; reads < 2; ++reads) {
        auto together = no_clocks(*fibres[0]);
        for (const Fibre* fibre : fibres) add_known(*together, *fibre, reads);
        for (Fibre* fibre : fibres) fibre->known[reads] = together;
    }
    for (Fibre* fibre : fibres) tick(*fibre);
}

void flag_written(Fibre& fibre, uintptr_t flag) {
    if (!fibre.fenced[0]) return;
    Group::Told& told = fibre.block->group->flags[flag];
    ++told.version;
    for (int reads = 0; reads < 2; ++reads) learn(told.known[reads], fibre.fenced[reads]);
}

void flag_read(Fibre& fibre, uintptr_t flag) {
    const auto& flags = fibre.block->group->flags;
    if (flags.empty()) return;
    const auto found = flags.find(flag);
    if (found == flags.end() || (fibre.flag == flag && fibre.flag_version == found->second.version)) return;
    fibre.flag = flag;
    fibre.flag_version = found->second.version;
    for (int reads = 0; reads < 2; ++reads) learn(fibre.known[reads], found->second.known[reads]);
}

}  // namespace simulator

using namespace simulator;

extern "C" void cupyops_fence() {
    if (machine.launch->checked) fence(*machine.current);
    cupyops_spin();
}

extern "C" void cupyops_show() {
    Fibre& fibre = *machine.current;
    fibre.shown = tick(fibre) + 1;
}

extern "C" void cupyops_yield() {
    machine.current->spins = 0;
    machine.current->spun = true;
    give_way();
    if (machine.frozen) frozen(__builtin_frame_address(0));
}
