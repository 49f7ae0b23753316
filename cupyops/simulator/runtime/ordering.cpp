// Orders accesses (happens-before) by barriers, shuffles, and flags that are written after a fence.
#include "machine.h"

#include <algorithm>

namespace simulator {

namespace {

constexpr unsigned EPOCHS = 1u << 20, PHASES = 1u << 12, CLOCKS = 1u << 16;

size_t place_of(unsigned rank, unsigned thread) { return size_t(rank) * machine.threads + thread; }

// Returns the clock that the thread `other` had at the last cluster barrier for which the thread `now` has waited.
unsigned cluster_clock(const Fibre& other, const Fibre& now) {
    return now.waited ? now.block->group->cluster_clocks[(now.waited - 1) & 1][place_of(other.block->rank, other.thread)] : 0;
}

const std::vector<unsigned>* clocks_of(const Clocks& all, unsigned group) {
    if (!all) return nullptr;
    const auto found = std::lower_bound(all->begin(), all->end(), group, [](const GroupClocks& g, unsigned n) { return g.group < n; });
    return found != all->end() && found->group == group ? found->clocks.get() : nullptr;
}

// Returns the clocks `others` with the clocks of one group replaced by `own`.
Clocks with_own(const Clocks& others, unsigned group, std::shared_ptr<const std::vector<unsigned>> own) {
    auto all = std::make_shared<std::vector<GroupClocks>>();
    if (others)
        for (const GroupClocks& g : *others)
            if (g.group != group) all->push_back(g);
    const auto place = std::lower_bound(all->begin(), all->end(), group, [](const GroupClocks& g, unsigned n) { return g.group < n; });
    all->insert(place, {group, std::move(own)});
    return all;
}

std::shared_ptr<std::vector<unsigned>> no_clocks(const Fibre& fibre) {
    return std::make_shared<std::vector<unsigned>>(fibre.block->group->blocks.size() * machine.threads, 0u);
}

void raise_to(std::vector<unsigned>& all, const std::vector<unsigned>& others) {
    for (size_t i = 0; i < all.size(); ++i) all[i] = std::max(all[i], others[i]);
}

void add_known(std::vector<unsigned>& all, const Fibre& fibre, int reads) {
    const Block& block = *fibre.block;
    if (const std::vector<unsigned>* known = clocks_of(fibre.known[reads], block.group->number)) raise_to(all, *known);
    if (fibre.waited) raise_to(all, block.group->cluster_clocks[(fibre.waited - 1) & 1]);
    unsigned* const here = &all[place_of(block.rank, 0)];
    for (unsigned t = 0; fibre.epoch && t < machine.threads; ++t) here[t] = std::max(here[t], block.fibres[t].barrier_clock);
    for (unsigned lane = 0, t = fibre.warp() * WARP; lane < WARP && t < machine.threads; ++lane, ++t)
        here[t] = std::max(here[t], fibre.clocks[reads][lane]);
}

Clocks together(const Clocks& a, const Clocks& b) {
    auto both = std::make_shared<std::vector<GroupClocks>>();
    both->reserve(a->size() + b->size());
    bool less = true, greater = true;  // a <= b, and a >= b, in every clock
    for (size_t i = 0, j = 0; i < a->size() || j < b->size();) {
        if (j == b->size() || (i < a->size() && (*a)[i].group < (*b)[j].group)) {
            both->push_back((*a)[i++]);
            less = false;
        } else if (i == a->size() || (*b)[j].group < (*a)[i].group) {
            both->push_back((*b)[j++]);
            greater = false;
        } else {
            const GroupClocks &of_a = (*a)[i++], &of_b = (*b)[j++];
            if (of_a.clocks == of_b.clocks) {
                both->push_back(of_a);
                continue;
            }
            const std::vector<unsigned>&one = *of_a.clocks, &other = *of_b.clocks;
            // The sign bits of the differences, since compilers have vectors of these for every CPU: clocks are below 2^31.
            unsigned greater_one = 0, greater_other = 0;
            for (size_t k = 0; k < one.size(); ++k) greater_one |= other[k] - one[k], greater_other |= one[k] - other[k];
            const bool below = !(greater_one >> 31), above = !(greater_other >> 31);
            less &= below, greater &= above;
            both->push_back(below ? of_b : of_a);
            if (below || above) continue;
            auto most = std::make_shared<std::vector<unsigned>>(one);
            raise_to(*most, other);
            both->back().clocks = most;
        }
    }
    return less ? b : greater ? a : both;
}

}  // namespace

void learn(Clocks& clocks, const Clocks& more) {
    if (!more || clocks == more) return;
    if (!clocks) {
        clocks = more;
        return;
    }
    // Caches the last four merges: the threads of a block mostly merge the same clocks, one after the other.
    static Clocks olds[4], addeds[4], results[4];
    static int turn = 0;
    for (int i = 0; i < 4; ++i)
        if (clocks == olds[i] && more == addeds[i]) {
            clocks = results[i];
            return;
        }
    turn = (turn + 1) & 3;
    Clocks &old = olds[turn], &added = addeds[turn], &result = results[turn];
    old = clocks;
    added = more;
    result = together(clocks, more);
    clocks = result;
}

uint64_t stamp_of(const Fibre& f, bool atomic) {
    const uint64_t rank = f.block->rank, epoch = std::min(f.epoch, EPOCHS - 1), phase = std::min(f.arrived, PHASES - 1),
                   clock = std::min(f.clock(), CLOCKS - 1);
    return VALID | (atomic ? ATOMIC : 0) | rank << 58 | uint64_t(f.thread) << 48 | epoch << 28 | phase << 16 | clock;
}

unsigned rank_in(uint64_t stamp) { return unsigned(stamp >> 58) & 15; }
unsigned thread_in(uint64_t stamp) { return unsigned(stamp >> 48) & 1023; }

// Returns whether a fence.proxy.async of the writing thread has made the write visible to bulk copies and wgmma.
bool shown(uint64_t stamp, const Fibre& writer) {
    const unsigned clock = unsigned(stamp) & (CLOCKS - 1);
    return clock < writer.shown || clock == CLOCKS - 1;
}

// Returns whether the access of a stamp happens before the next access of the thread `now`. A clock, phase or epoch
// that has overflowed its bits counts as ordered.
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
    const std::vector<unsigned>* known = clocks_of(now.known[read], here.group->number);
    if (known && (*known)[place_of(rank, thread)] >= clock) return true;
    // Finds the other thread's first releasing arrival at the cluster's barrier after the access, and tests whether
    // this thread has waited for that barrier.
    const Fibre& other = here.group->blocks[rank]->fibres[thread];
    unsigned arrival = phase;
    while (arrival < other.arrived && other.arrived - arrival <= 64 && (other.relaxed >> (other.arrived - arrival - 1) & 1)) ++arrival;
    return arrival < other.arrived && arrival < now.waited;
}

// Returns whether the accesses are ordered, for global memory. A global stamp names a thread of the whole launch, whose
// group may have ended.
bool before_in_global(uint64_t stamp, bool read, const Fibre& now) {
    const unsigned group = group_in(stamp), rank = unsigned(stamp >> RANK_AT) & 15, thread = unsigned(stamp >> THREAD_AT) & 1023;
    const unsigned clock = unsigned(stamp & LAST_CLOCK);
    if (clock == LAST_CLOCK) return true;
    const Block& here = *now.block;
    const std::vector<unsigned>* known = clocks_of(now.known[read], group);
    if (known && (*known)[place_of(rank, thread)] >= clock) return true;
    if (group != here.group->number) return false;
    const Fibre& other = here.group->blocks[rank]->fibres[thread];
    if (rank == here.rank) {
        if (thread == now.thread) return true;
        // A block's barrier orders all accesses before it, and all threads of the block pass it together.
        if (clock <= other.barrier_clock) return true;
        if (other.warp() == now.warp() && now.clocks[read][other.lane()] >= clock) return true;
    }
    return clock <= cluster_clock(other, now);
}

// Advances the fibre's own clock after a release: the release covers the accesses before, not the accesses from now on.
unsigned tick(Fibre& fibre) {
    settle();
    ++fibre.clocks[1][fibre.lane()];
    return fibre.clocks[0][fibre.lane()]++;
}

// Records the clocks that the fibre's later flag writes publish: clocks acquired through flags, the clocks of its warp,
// and the clocks at the last barriers of its block and its cluster.
void fence(Fibre& fibre) {
    for (int reads = 0; reads < 2; ++reads) {
        auto published = no_clocks(fibre);
        add_known(*published, fibre, reads);
        fibre.fenced[reads] = with_own(fibre.known[reads], fibre.block->group->number, published);
    }
    tick(fibre);
}

void exchange_clocks(const std::vector<Fibre*>& fibres, bool reads_alone) {
    for (int reads = reads_alone; reads < 2; ++reads) {
        auto own = no_clocks(*fibres[0]);
        Clocks all;
        for (const Fibre* fibre : fibres) {
            add_known(*own, *fibre, reads);
            learn(all, fibre->known[reads]);
        }
        all = with_own(all, fibres[0]->block->group->number, own);
        for (Fibre* fibre : fibres) fibre->known[reads] = all;
    }
    for (int i = 2; i < 4 && !reads_alone; ++i) {
        Clocks fenced;
        for (Fibre* fibre : fibres) learn(fenced, fibre->handed_on(i));
        for (Fibre* fibre : fibres)
            if (fenced) fibre->handed_on(i) = fenced;
    }
    for (Fibre* fibre : fibres) tick(*fibre);
}

void flag_written(Fibre& fibre, Flags& flags, uintptr_t flag) {
    if (!fibre.fenced[0]) return;
    Published& published = flags[flag];
    ++published.version;
    for (int reads = 0; reads < 2; ++reads) learn(published.known[reads], fibre.fenced[reads]);
}

void flag_read(Fibre& fibre, const Flags& flags, uintptr_t flag) {
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
    if (machine.launch->checked > CUPYOPS_BOUNDS) fence(*machine.current);
    cupyops_spin();
}

extern "C" void cupyops_show() {
    Fibre& fibre = *machine.current;
    fibre.shown = tick(fibre) + 1;
}

extern "C" void cupyops_yield() {
    WAITS_HERE((*machine.current));
    machine.current->spins = 0;
    machine.current->spun = true;
    give_way();
    if (machine.frozen) frozen(__builtin_frame_address(0));
}
