// Implements the barriers of a cluster, and the addresses of shared memory in its blocks.
#include "machine.h"

namespace simulator {

void try_cluster(Group& group) {
    if (!group.arrivals) return;
    for (auto& block : group.blocks)
        for (Fibre& fibre : block->fibres)
            if (fibre.state != State::DONE && fibre.arrived <= group.phase) return;
    const unsigned now = group.phase++ & 1;  // two sets are enough: no thread is more than one phase behind
    group.arrivals = 0;
    size_t place = 0;
    for (auto& block : group.blocks)
        for (Fibre& fibre : block->fibres) {
            group.cluster_clocks[now][place] = fibre.relaxed & 1 ? group.cluster_clocks[now ^ 1][place] : fibre.arrive_clock;
            ++place;
        }
    for (int i = 0; i < 4; ++i) group.released[now][i] = std::move(group.arriving[i]);
    for (auto& block : group.blocks)
        for (Fibre& fibre : block->fibres)
            if (fibre.state == State::CLUSTER) fibre.state = State::READY;
}

namespace {

[[noreturn]] void refuse(int kind, void* frame, const char* words, unsigned a = 0, unsigned b = 0) {
    CupyopsFault& fault = begin_fault(kind);
    fault.frame_count = walk(*machine.current, reinterpret_cast<uintptr_t>(frame), fault.frames);
    append(fault, words, a, b);
    raise_fault(fault);
}

}  // namespace

}  // namespace simulator

using namespace simulator;

extern "C" {

void cupyops_cluster_arrive(int relaxed) {
    Fibre& fibre = *machine.current;
    Group& group = *fibre.block->group;
    if (fibre.arrived != fibre.waited)
        refuse(CUPYOPS_BARRIER, __builtin_frame_address(0), "the thread arrives at the cluster's barrier twice without waiting for it in between");
    fibre.relaxed = fibre.relaxed << 1 | unsigned(relaxed != 0);
    ++fibre.arrived;
    fibre.arrive_clock = tick(fibre);
    for (int i = 0; i < 4 && !relaxed; ++i) learn(group.arriving[i], fibre.handed_on(i));
    ++group.arrivals;
    try_cluster(group);
}

void cupyops_cluster_wait() {
    Fibre& fibre = *machine.current;
    if (fibre.arrived == fibre.waited)
        refuse(CUPYOPS_BARRIER, __builtin_frame_address(0), "the thread waits for the cluster's barrier without having arrived at it");
    if (fibre.block->group->phase < fibre.arrived) {
        WAITS_HERE(fibre);
        wait_here(fibre, State::CLUSTER);
    }
    fibre.waited = fibre.arrived;
    for (int i = 0; i < 4; ++i) learn(fibre.handed_on(i), fibre.block->group->released[(fibre.waited - 1) & 1][i]);
}

unsigned cupyops_cluster_rank() { return machine.current->block->rank; }

void* cupyops_cluster_map(const void* p, unsigned rank) {
    Block& here = *machine.current->block;
    const size_t size = here.group->blocks.size();
    if (rank >= size) refuse(CUPYOPS_WARP, __builtin_frame_address(0), "maps an address to block %u of a cluster that has %u blocks", rank, unsigned(size));
    const char* at = static_cast<const char*>(p);
    const char* const saved = here.group->saved.get();
    size_t offset = 0;
    if (at >= machine.arena && at < machine.arena + ARENA_BYTES) offset = size_t(at - machine.arena);
    else if (saved && at >= saved && at < saved + here.group->saved_bytes) offset = size_t(at - saved) % ARENA_BYTES;
    else refuse(CUPYOPS_WARP, __builtin_frame_address(0), "maps an address outside shared memory to another block of the cluster");
    return rank == here.rank ? machine.arena + offset : here.group->blocks[rank]->saved + offset;
}

unsigned cupyops_cluster_rank_of(const void* p) {
    const Block& here = *machine.current->block;
    const char* at = static_cast<const char*>(p);
    const char* const saved = here.group->saved.get();
    if (saved && at >= saved && at < saved + here.group->saved_bytes) return unsigned(size_t(at - saved) / ARENA_BYTES);
    return here.rank;
}
}
