// Implements the barriers of a block, and the warp functions.
#include "machine.h"

#include <algorithm>
#include <string>

namespace simulator {

namespace {

const char* const WARP_NAMES[CUPYOPS_WARP_OPERATIONS] = {
    "__shfl_sync", "__shfl_up_sync", "__shfl_down_sync", "__shfl_xor_sync", "__all_sync", "__any_sync", "__ballot_sync",
    "__match_any_sync", "__match_all_sync", "__reduce_add_sync", "__reduce_min_sync", "__reduce_max_sync",
    "__reduce_min_sync (unsigned)", "__reduce_max_sync (unsigned)", "__reduce_and_sync", "__reduce_or_sync",
    "__reduce_xor_sync", "a matrix instruction of the warp", "__syncwarp"};
const char* const BARRIER_NAMES[] = {"__syncthreads", "__syncthreads_count", "__syncthreads_and", "__syncthreads_or"};

// Formats thread numbers: "threads 0-15, 20".
std::string numbers(const std::vector<unsigned>& which) {
    std::string text = which.size() == 1 ? "thread " : "threads ";
    for (size_t i = 0, j; i < which.size(); i = j) {
        for (j = i + 1; j < which.size() && which[j] == which[j - 1] + 1; ++j) {}
        if (i) text += ", ";
        text += std::to_string(which[i]);
        if (j - i > 1) text += "-" + std::to_string(which[j - 1]);
    }
    return text;
}

std::string location(const Fibre& fibre) {
    uintptr_t frames[CUPYOPS_FRAMES];
    const unsigned count = std::min(waiting_frames(fibre, frames), 6u);
    std::string text = "{at:";
    for (unsigned i = 0; i < count; ++i) text += (i ? "," : "") + std::to_string(frames[i]);
    return text + "}";
}

std::string what_it_does(const Fibre& fibre) {
    char mask[40];
    snprintf(mask, sizeof mask, " with mask 0x%08x", fibre.mask);
    switch (fibre.state) {
        case State::DONE: return "ended";
        case State::BARRIER: return std::string("wait at ") + BARRIER_NAMES[fibre.operation] + " (" + location(fibre) + ")";
        case State::MEETING: return "wait at barrier " + std::to_string(fibre.operation) + " of " + std::to_string(fibre.value) + " threads (" + location(fibre) + ")";
        case State::WARP_OPERATION:
            return std::string("wait at ") + WARP_NAMES[fibre.operation] + mask + " (" + location(fibre) + ")";
        case State::CLUSTER: return "wait at the cluster's barrier (" + location(fibre) + ")";
        default: return fibre.spun && fibre.waiting_frame ? "wait for memory to change (" + location(fibre) + ")" : "still run";
    }
}

}  // namespace

// Threads with equal descriptions share one entry.
std::string inventory(const Block& block) {
    std::vector<std::pair<std::string, std::vector<unsigned>>> kinds;
    for (const Fibre& fibre : block.fibres) {
        const std::string what = what_it_does(fibre);
        auto found = std::find_if(kinds.begin(), kinds.end(), [&](const auto& k) { return k.first == what; });
        if (found == kinds.end()) found = kinds.insert(found, {what, {}});
        found->second.push_back(fibre.thread);
    }
    std::string text;
    for (const auto& kind : kinds) text += (text.empty() ? "" : "; ") + numbers(kind.second) + " " + kind.first;
    return text;
}

namespace {

void stop(CupyopsFault& fault) {
    if (machine.current) raise_fault(fault);
    machine.outcome = 1;
}

// Begins a fault record of a waiting thread; the thread that arrived last finds the fault.
CupyopsFault& fault_at(int kind, const Fibre& fibre) {
    CupyopsFault& fault = begin_fault(kind);
    place(fault, fibre);
    fault.frame_count = waiting_frames(fibre, fault.frames);
    return fault;
}

bool barrier_complete(const Block& block) { return block.at_barrier && block.at_barrier + block.done == block.fibres.size(); }

void release_barrier(Block& block) {
    Fibre* first = nullptr;
    int count = 0, votes = 0;
    for (Fibre& fibre : block.fibres) {
        if (fibre.state != State::BARRIER) continue;
        if (!first) first = &fibre;
        if (fibre.operation != first->operation) {
            CupyopsFault& fault = fault_at(CUPYOPS_BARRIER, fibre);
            append(fault, "the threads of a block reach one barrier by different forms of it: %s", inventory(block).c_str());
            return stop(fault);
        }
        ++count;
        votes += fibre.predicate != 0;
    }
    if (machine.launch->checked > CUPYOPS_BOUNDS && block.done) {
        CupyopsFault& fault = fault_at(CUPYOPS_BARRIER, *first);
        append(fault, "a barrier is not reached by all threads of its block: %s", inventory(block).c_str());
        return stop(fault);
    }
    Clocks together[4];  // the threads' merged clocks: all threads leave the barrier with the same known and fenced clocks
    for (Fibre& fibre : block.fibres)
        for (int i = 0; i < 4; ++i) learn(together[i], fibre.handed_on(i));
    for (Fibre& fibre : block.fibres) {
        if (fibre.state != State::BARRIER) continue;
        for (int i = 0; i < 4; ++i)
            if (together[i]) fibre.handed_on(i) = together[i];
        fibre.predicate = fibre.operation == CUPYOPS_COUNT ? votes : fibre.operation == CUPYOPS_AND ? votes == count : votes != 0;
        ++fibre.epoch;
        fibre.barrier_clock = tick(fibre);
        fibre.state = State::READY;
    }
    block.at_barrier = 0;
}

// Warps.

unsigned reduced(int operation, unsigned a, unsigned b) {
    switch (operation) {
        case CUPYOPS_REDUCE_ADD: return a + b;
        case CUPYOPS_REDUCE_MIN: return unsigned(std::min(int(a), int(b)));
        case CUPYOPS_REDUCE_MAX: return unsigned(std::max(int(a), int(b)));
        case CUPYOPS_REDUCE_UMIN: return std::min(a, b);
        case CUPYOPS_REDUCE_UMAX: return std::max(a, b);
        case CUPYOPS_REDUCE_AND: return a & b;
        case CUPYOPS_REDUCE_OR: return a | b;
        default: return a ^ b;
    }
}

// Returns the lane that a shuffle reads, as PTX defines it.
unsigned source_lane(const Fibre& fibre) {
    const unsigned segment = WARP - unsigned(fibre.width), lane = fibre.lane(), argument = unsigned(fibre.lane_argument) & 31;
    const unsigned first = lane & segment, last = first | (~segment & 31);
    switch (fibre.operation) {
        case CUPYOPS_SHFL: return first | (argument & ~segment & 31);
        case CUPYOPS_SHFL_UP: return lane < argument + first ? lane : lane - argument;
        case CUPYOPS_SHFL_DOWN: return lane + argument > last ? lane : lane + argument;
        default: return (lane ^ argument) > last ? lane : lane ^ argument;
    }
}

bool try_warp(Block& block, unsigned warp, unsigned mask, int operation) {
    Fibre* lanes[WARP];
    unsigned present = 0;
    for (unsigned l = WARP; l-- > 0;) {  // lanes mostly arrive in order, so the last one is most likely missing
        Fibre* fibre = mask >> l & 1 ? lane_of(block, warp, l) : nullptr;
        lanes[l] = nullptr;
        if (!fibre || fibre->state == State::DONE) continue;
        if (fibre->state != State::WARP_OPERATION || fibre->operation != operation || fibre->mask != mask) return false;
        lanes[l] = fibre;
        present |= 1u << l;
    }
    if (!present) return false;
    const Fibre& first_lane = *lanes[__builtin_ctz(present)];
    for (unsigned l = 0; l < WARP && machine.launch->checked > CUPYOPS_BOUNDS; ++l) {
        if (!(mask >> l & 1) || present >> l & 1 || !lane_of(block, warp, l)) continue;
        CupyopsFault& fault = fault_at(CUPYOPS_WARP, first_lane);
        append(fault, "%s with mask 0x%08x names lane %u, which has ended, from lane %u", WARP_NAMES[operation], mask, l, first_lane.lane());
        stop(fault);
        return true;
    }
    unsigned long long results[WARP] = {};
    unsigned ballot = 0, together = 0, knowledge[2][WARP] = {};
    Clocks known[4];
    const bool all = operation == CUPYOPS_SYNCWARP;  // __syncwarp orders all accesses, and the other operations order reads alone
    bool first = true, alike = true;
    for (unsigned l = 0; l < WARP; ++l) {
        if (!lanes[l]) continue;
        const unsigned value = unsigned(lanes[l]->value);
        if (lanes[l]->value) ballot |= 1u << l;
        together = first ? value : reduced(operation, together, value);
        alike &= lanes[l]->value == first_lane.value;
        first = false;
        for (int reads = all ? 0 : 1; reads < 2; ++reads) {
            for (unsigned k = 0; k < WARP; ++k) knowledge[reads][k] = std::max(knowledge[reads][k], lanes[l]->clocks[reads][k]);
        }
        for (int i = all ? 0 : 1; i < (all ? 4 : 2); ++i) learn(known[i], lanes[l]->handed_on(i));
    }
    for (unsigned l = 0; l < WARP; ++l) {
        if (!lanes[l]) continue;
        Fibre& fibre = *lanes[l];
        if (operation <= CUPYOPS_SHFL_XOR) {
            const unsigned from = source_lane(fibre);
            if (!(present >> from & 1)) {
                CupyopsFault& fault = fault_at(CUPYOPS_WARP, fibre);
                const char* why = !(mask >> from & 1) ? "is not in the mask" : lane_of(block, warp, from) ? "has ended" : "does not exist";
                append(fault, "%s with mask 0x%08x reads lane %u, which %s, from lane %u", WARP_NAMES[operation], mask, from, why, l);
                stop(fault);
                return true;
            }
            results[l] = lanes[from]->value;
            continue;
        }
        unsigned same = 0;
        switch (operation) {
            case CUPYOPS_ALL: results[l] = ballot == present; break;
            case CUPYOPS_ANY: results[l] = ballot != 0; break;
            case CUPYOPS_BALLOT: results[l] = ballot; break;
            case CUPYOPS_MATCH_ANY:
                for (unsigned k = 0; k < WARP; ++k)
                    if (lanes[k] && lanes[k]->value == fibre.value) same |= 1u << k;
                results[l] = same;
                break;
            case CUPYOPS_MATCH_ALL:
                results[l] = alike ? present : 0;
                fibre.predicate = alike;
                break;
            case CUPYOPS_SYNCWARP:
                std::copy(knowledge[0], knowledge[0] + WARP, fibre.clocks[0]);
                for (int i = 0; i < 4; ++i)
                    if (known[i]) fibre.handed_on(i) = known[i];
                break;
            default: results[l] = together;
        }
    }
    for (unsigned l = 0; l < WARP; ++l) {
        if (!lanes[l]) continue;
        std::copy(knowledge[1], knowledge[1] + WARP, lanes[l]->clocks[1]);
        if (known[1]) lanes[l]->known[1] = known[1];
        tick(*lanes[l]);
        lanes[l]->value = results[l];
        lanes[l]->state = State::READY;
    }
    return true;
}

}  // namespace

Fibre* lane_of(const Block& block, unsigned warp, unsigned lane) {
    const size_t thread = size_t(warp) * WARP + lane;
    return thread < block.fibres.size() ? const_cast<Fibre*>(&block.fibres[thread]) : nullptr;
}

void thread_ended(Fibre& fibre) {
    Block& block = *fibre.block;
    ++block.done;
    if (barrier_complete(block)) release_barrier(block);
    for (unsigned l = 0; l < WARP && !machine.outcome; ++l) {
        Fibre* other = lane_of(block, fibre.warp(), l);
        if (other && other->state == State::WARP_OPERATION) try_warp(block, fibre.warp(), other->mask, other->operation);
    }
    if (!machine.outcome) try_cluster(*block.group);
}

// Compares whole call stacks: two branches may call one function that calls __activemask().
bool waits_at_same_call(const Fibre& a, const Fibre& b) {
    if (a.waiting_pc != b.waiting_pc) return false;
    uintptr_t ours[CUPYOPS_FRAMES], theirs[CUPYOPS_FRAMES];
    const unsigned count = waiting_frames(a, ours);
    return count == waiting_frames(b, theirs) && std::equal(ours, ours + count, theirs);
}

// Completes __activemask() when no thread can run: the mask has the lanes of a warp that wait at the same call. A GPU
// usually returns the same mask.
bool resolve_active_masks() {
    bool any = false;
    for (auto& group : machine.active)
        for (auto& block : group->blocks)
            for (Fibre& fibre : block->fibres) {
                if (fibre.state != State::ACTIVE_MASK) continue;
                any = true;
                unsigned mask = 0;
                std::vector<Fibre*> there;
                for (unsigned l = 0; l < WARP; ++l) {
                    Fibre* other = lane_of(*block, fibre.warp(), l);
                    if (!other || other->state != State::ACTIVE_MASK || !waits_at_same_call(*other, fibre)) continue;
                    mask |= 1u << l;
                    there.push_back(other);
                }
                for (Fibre* other : there) {
                    other->value = mask;
                    other->state = State::READY;
                }
            }
    return any;
}

void explain_standstill() {
    for (auto& group : machine.active) {
        for (auto& block : group->blocks) {
            if (block->ended()) continue;
            const Fibre* waiting = nullptr;
            bool at_barrier = false, masks_differ = false;
            for (const Fibre& fibre : block->fibres) {
                if (fibre.state == State::DONE) continue;
                if (!waiting) waiting = &fibre;
                at_barrier |= fibre.state == State::BARRIER;
                for (unsigned l = 0; fibre.state == State::WARP_OPERATION && l < WARP; ++l) {
                    const Fibre* other = fibre.mask >> l & 1 ? lane_of(*block, fibre.warp(), l) : nullptr;
                    masks_differ |= other && other->state == State::WARP_OPERATION && other->operation == fibre.operation && other->mask != fibre.mask;
                }
            }
            if (!waiting) continue;
            CupyopsFault& fault = fault_at(CUPYOPS_BARRIER, *waiting);
            append(fault, "%s: %s",
                   masks_differ ? "lanes of a warp name different masks, and none can go on"
                   : at_barrier ? "a barrier is not reached by all threads of its block"
                                : "threads wait for threads that never arrive",
                   inventory(*block).c_str());
            machine.outcome = 1;
            return;
        }
    }
}

}  // namespace simulator

using namespace simulator;

extern "C" {

int cupyops_barrier(int operation, int predicate) {
    Fibre& fibre = *machine.current;
    Block& block = *fibre.block;
    WAITS_HERE(fibre);
    fibre.operation = operation;
    fibre.predicate = predicate;
    fibre.state = State::BARRIER;
    ++block.at_barrier;
    if (barrier_complete(block)) release_barrier(block);
    else give_way();
    return fibre.predicate;
}

void cupyops_meet(unsigned barrier, unsigned threads, int reads_alone) {
    Fibre& fibre = *machine.current;
    Block& block = *fibre.block;
    WAITS_HERE(fibre);
    fibre.operation = int(barrier);
    fibre.value = threads;
    fibre.state = State::MEETING;
    if (++block.meeting[barrier] < threads) return give_way();
    std::vector<Fibre*> there;
    for (Fibre& other : block.fibres)
        if (other.state == State::MEETING && other.operation == int(barrier)) there.push_back(&other);
    for (Fibre* other : there) {
        if (other->value != threads) {
            CupyopsFault& fault = fault_at(CUPYOPS_BARRIER, *other);
            append(fault, "threads meet at one barrier and expect different numbers of them: %s", inventory(block).c_str());
            raise_fault(fault);
        }
    }
    for (Fibre* other : there) other->state = State::READY;
    if (machine.launch->checked > CUPYOPS_BOUNDS) exchange_clocks(there, reads_alone != 0);
    block.meeting[barrier] = 0;
}

void* cupyops_kept(unsigned number, size_t bytes) {
    std::unique_ptr<char[]>& kept = machine.current->block->kept[number];
    if (!kept) kept.reset(new char[bytes]());
    return kept.get();
}

unsigned long long cupyops_warp(int operation, unsigned mask, unsigned long long value, int lane, int width, int* predicate) {
    Fibre& fibre = *machine.current;
    WAITS_HERE(fibre);
    fibre.operation = operation;
    fibre.mask = mask;
    fibre.value = value;
    fibre.lane_argument = lane;
    fibre.width = width;
    if (!(mask >> fibre.lane() & 1)) {
        CupyopsFault& fault = fault_at(CUPYOPS_WARP, fibre);
        append(fault, "%s is called by lane %u, which its mask 0x%08x leaves out", WARP_NAMES[operation], fibre.lane(), mask);
        raise_fault(fault);
    }
    if (width < 1 || width > int(WARP) || (width & (width - 1))) {
        CupyopsFault& fault = fault_at(CUPYOPS_WARP, fibre);
        append(fault, "%s has width %d, which must be 1, 2, 4, 8, 16 or 32", WARP_NAMES[operation], width);
        raise_fault(fault);
    }
    fibre.state = State::WARP_OPERATION;
    if (!try_warp(*fibre.block, fibre.warp(), mask, operation)) give_way();
    if (predicate) *predicate = fibre.predicate;
    return fibre.value;
}

unsigned cupyops_active_mask() {
    Fibre& fibre = *machine.current;
    WAITS_HERE(fibre);
    wait_here(fibre, State::ACTIVE_MASK);
    return unsigned(fibre.value);
}

int cupyops_grid_begin(unsigned long long* launch) {
    *launch = machine.launches;
    return machine.launch->cooperative;
}

unsigned cupyops_lane() { return machine.current->lane(); }
}
