// Counts the memory requests and the executed basic blocks of each warp, as the counters of a GPU do.
//
// A counted kernel is compiled with calls at every memory access (-fsanitize=thread) and at the beginning of every
// basic block (-fsanitize-coverage=trace-pc). This library defines the functions that these calls reach, and the runtime's
// checks do not run. Each lane records its events. The events of the lanes of a warp are then replayed in the order in
// which a warp executes them: at each step the lanes whose code address is lowest execute together, and the other lanes
// wait for them. Lanes that took different branches, or left a loop at different iterations, meet again where their
// code joins, since the compiler keeps the order of the source. One step of the replay is one request of the warp.
#include "counting.h"

#include <algorithm>
#include <memory>
#include <string.h>
#include <unordered_map>
#include <vector>

namespace {

constexpr unsigned WARP = 32, BANKS = 32, SECTOR = 32, WIDEST = 16;
constexpr size_t STACK_BYTES = 256 * 1024;
constexpr unsigned WHOLE = 1u << 31;  // a bit of CupyopsSite::bytes: the compiler reports an object, not one access
constexpr size_t PATIENCE = 4096;  // events of a lane before the other lanes of its warp run

struct Event {
    unsigned site;
    uint16_t space, range;  // of an access; `range` is an index into `ranges` if the space is CUPYOPS_GLOBAL
    uintptr_t address;
};

struct Lane {
    std::vector<Event> events;
    size_t next = 0;
    bool ended = false;
    bool empty() const { return next == events.size(); }
    unsigned site() const { return events[next].site; }
    Event take() {
        const Event event = events[next++];
        if (empty()) events.clear(), next = 0;
        return event;
    }
    void drop() {  // frees what has been replayed
        events.erase(events.begin(), events.begin() + static_cast<long>(next));
        next = 0;
    }
};

struct Warp {
    std::vector<Lane> lanes;
    unsigned ended = 0;
};

struct Range {
    uintptr_t begin, end;
    std::vector<uint64_t> loaded, stored;  // a bit for each byte
};

std::vector<CupyopsSite> sites;
std::unordered_map<uint64_t, unsigned> site_numbers;
struct Recent { uint64_t key; unsigned site; };
Recent recent[1024];
std::unordered_map<unsigned long long, std::vector<Warp>> blocks;
std::vector<Range> ranges;
std::vector<CupyopsTouched> touched;
unsigned threads = 0;
CupyopsHere here, last;
bool bulk = false;  // the running thread performs a bulk copy
Lane* lane = nullptr;
Warp* warp = nullptr;

unsigned site_of(unsigned kind, unsigned bytes, uintptr_t pc, uintptr_t frame) {
    uintptr_t path[CUPYOPS_FRAMES];
    unsigned count = 0;
    path[count++] = pc;
    uint64_t key = (pc * 8 + kind) * 0x9E3779B97F4A7C15ull + bytes;
    const uintptr_t low = reinterpret_cast<uintptr_t>(here.stack), high = low + STACK_BYTES - 16;
    while (frame >= low && frame < high && count < CUPYOPS_FRAMES) {
        const uintptr_t* pair = reinterpret_cast<const uintptr_t*>(frame);
        if (!pair[1] || pair[0] <= frame) break;
        path[count++] = pair[1];
        key = (key ^ key >> 29 ^ pair[1]) * 0xBF58476D1CE4E5B9ull;
        frame = pair[0];
    }
    Recent& slot = recent[key >> 54];
    if (slot.key == key) return slot.site;
    const auto found = site_numbers.insert({key, unsigned(sites.size())});
    if (found.second) {
        CupyopsSite site;
        memset(&site, 0, sizeof site);
        site.kind = kind, site.bytes = bytes, site.frame_count = count;
        std::copy(path, path + count, site.frames);
        sites.push_back(site);
    }
    slot = {key, found.first->second};
    return slot.site;
}

// Returns whether the code of one site comes before the code of another. The call paths are compared from the outermost
// function inwards: a call is at its place in the caller.
bool before(unsigned a, unsigned b) {
    const CupyopsSite &one = sites[a], &other = sites[b];
    unsigned i = one.frame_count, j = other.frame_count;
    while (i && j) {
        const uintptr_t p = one.frames[--i], q = other.frames[--j];
        if (p != q) return p < q;
    }
    return i < j;
}

// Finds the memory space of an access, and the array that holds a global address. Returns false for an access that is
// not counted: the kernel's module holds the simulator's own variables, such as threadIdx, beside __device__ variables.
bool place(Event& event, unsigned kind) {
    // Writable arrays come first. If two arrays share memory, a load counts for the array that is only read.
    const bool load = kind == CUPYOPS_LOAD || kind == CUPYOPS_BULK_LOAD;
    for (size_t n = 0; n < ranges.size(); ++n) {
        const size_t r = load ? ranges.size() - 1 - n : n;
        if (event.address < ranges[r].begin || event.address >= ranges[r].end) continue;
        event.space = CUPYOPS_GLOBAL, event.range = uint16_t(r);
        return true;
    }
    const void* p = reinterpret_cast<const void*>(event.address);
    event.range = UINT16_MAX;
    if (cupyops_is_shared(p)) event.space = CUPYOPS_SHARED;
    else if (cupyops_cluster_rank_of(p) != cupyops_cluster_rank()) event.space = CUPYOPS_REMOTE;
    else if (kind == CUPYOPS_ATOMIC) event.space = CUPYOPS_GLOBAL;
    else return false;
    return true;
}

// Marks bytes as accessed; returns how many of them were not accessed before.
unsigned mark(std::vector<uint64_t>& bits, const Range& range, uintptr_t address, unsigned bytes) {
    if (bits.empty()) bits.resize((range.end - range.begin + 63) / 64);
    unsigned fresh = 0;
    for (size_t at = address - range.begin, end = std::min(at + bytes, size_t(range.end - range.begin)); at < end;) {
        const unsigned shift = at % 64, count = unsigned(std::min<size_t>(64 - shift, end - at));
        const uint64_t mask = (count == 64 ? ~0ull : (1ull << count) - 1) << shift;
        uint64_t& word = bits[at / 64];
        fresh += unsigned(__builtin_popcountll(mask & ~word));
        word |= mask;
        at += count;
    }
    return fresh;
}

// Sorts a few numbers and drops the repeated ones; returns how many remain.
unsigned distinct(uintptr_t* numbers, unsigned count) {
    std::sort(numbers, numbers + count);
    return unsigned(std::unique(numbers, numbers + count) - numbers);
}

// The passes over the 32 banks for the lanes [first, first + count): the most distinct words of 4 bytes in one bank.
unsigned passes(const uintptr_t* addresses, unsigned lanes, unsigned first, unsigned count, unsigned bytes) {
    uintptr_t words[WARP * WIDEST / 4];
    unsigned number = 0, in_bank[BANKS] = {}, most = 0;
    for (unsigned l = first; l < first + count; ++l)
        for (uintptr_t w = addresses[l] / 4; lanes >> l & 1 && w <= (addresses[l] + bytes - 1) / 4; ++w) words[number++] = w;
    number = distinct(words, number);
    for (unsigned i = 0; i < number; ++i) most = std::max(most, ++in_bank[words[i] % BANKS]);
    return most;
}

// Returns whether lane l and lane l ^ step have one address, for all lanes that take part.
bool paired(const uintptr_t* addresses, unsigned lanes, unsigned step) {
    for (unsigned l = 0; l < WARP; ++l)
        if (lanes >> l & 1 && lanes >> (l ^ step) & 1 && addresses[l] != addresses[l ^ step]) return false;
    return true;
}

// Counts the wavefronts of one request to shared memory. A wavefront moves 128 bytes: accesses of 8 bytes a lane take
// the two halves of the warp after each other, and accesses of 16 bytes the four quarters. A load whose lanes l and
// l ^ 1, or l and l ^ 2, share their address takes half as many parts.
void shared_request(CupyopsRequests& to, const uintptr_t* addresses, unsigned lanes, unsigned bytes, bool load) {
    unsigned parts = bytes <= 4 ? 1 : bytes <= 8 ? 2 : 4;
    if (load && parts > 1 && (paired(addresses, lanes, 1) || paired(addresses, lanes, 2))) parts /= 2;
    const unsigned each = WARP / parts;
    for (unsigned first = 0; first < WARP; first += each) {
        const unsigned count = passes(addresses, lanes, first, each, bytes);
        to.wavefronts += count;
        to.conflicts += count ? count - 1 : 0;
    }
}

void global_request(CupyopsRequests& to, const uintptr_t* addresses, unsigned lanes, unsigned bytes, unsigned range, unsigned kind) {
    uintptr_t found[WARP * 2], words[WARP];
    unsigned count = 0, number = 0;
    for (unsigned l = 0; l < WARP; ++l) {
        if (!(lanes >> l & 1)) continue;
        words[number++] = addresses[l];
        found[count++] = addresses[l] / SECTOR;
        if ((addresses[l] + bytes - 1) / SECTOR != found[count - 1]) found[count++] = (addresses[l] + bytes - 1) / SECTOR;
    }
    count = distinct(found, count);
    number = distinct(words, number);
    unsigned covered = 0;
    for (unsigned i = 0; i < number; ++i)
        covered += i + 1 < number ? unsigned(std::min<uintptr_t>(bytes, words[i + 1] - words[i])) : bytes;
    to.sectors += count;
    to.ideal += (covered + SECTOR - 1) / SECTOR;
    if (range >= ranges.size()) return;
    (kind == CUPYOPS_LOAD ? touched[range].loaded_sectors : touched[range].stored_sectors) += count;
    for (unsigned i = 0; i < number; ++i) {
        if (kind != CUPYOPS_STORE) touched[range].loaded_bytes += mark(ranges[range].loaded, ranges[range], words[i], bytes);
        if (kind != CUPYOPS_LOAD) touched[range].stored_bytes += mark(ranges[range].stored, ranges[range], words[i], bytes);
    }
}

void request(CupyopsSite& site, CupyopsSpace space, unsigned range, const uintptr_t* addresses, unsigned lanes, unsigned bytes) {
    CupyopsRequests& to = site.spaces[space];
    ++to.requests;
    to.lanes += unsigned(__builtin_popcount(lanes));
    if (site.kind == CUPYOPS_ATOMIC) {
        uintptr_t words[WARP];
        unsigned number = 0, most = 0, run = 0;
        for (unsigned l = 0; l < WARP; ++l)
            if (lanes >> l & 1) words[number++] = addresses[l];
        std::sort(words, words + number);
        for (unsigned i = 0; i < number; ++i) most = std::max(most, run = i && words[i] == words[i - 1] ? run + 1 : 1);
        to.collisions += most;
    }
    if (space == CUPYOPS_GLOBAL) global_request(to, addresses, lanes, bytes, range, site.kind);
    else if (space == CUPYOPS_SHARED && site.kind != CUPYOPS_ATOMIC) shared_request(to, addresses, lanes, bytes, site.kind == CUPYOPS_LOAD);
}

// Counts the bytes of a bulk copy of one lane. A bulk copy makes no request of a warp.
void copied(const Event& event, unsigned bytes, bool load) {
    if (event.space != CUPYOPS_GLOBAL || event.range >= ranges.size()) return;
    Range& range = ranges[event.range];
    CupyopsTouched& to = touched[event.range];
    (load ? to.loaded_bulk : to.stored_bulk) += bytes;
    (load ? to.loaded_bytes : to.stored_bytes) += mark(load ? range.loaded : range.stored, range, event.address, bytes);
}

// Splits an access into what one instruction moves: at most 16 bytes, a power of two, at an aligned address. The
// compiler reports a copy of a whole object by its size; an object of a lower alignment than 8 is moved by words.
unsigned instruction_bytes(unsigned bytes, bool whole, const uintptr_t* addresses, unsigned lanes) {
    if (!whole) return bytes;
    uintptr_t bits = bytes | WIDEST;
    for (unsigned l = 0; l < WARP; ++l)
        if (lanes >> l & 1) bits |= addresses[l];
    const unsigned natural = 1u << __builtin_ctzll(bits);
    return bytes <= WIDEST ? std::min(natural, 4u) : natural;
}

void execute(unsigned number, const Event* events, unsigned lanes) {
    CupyopsSite& site = sites[number];
    ++site.executions;
    site.lanes += unsigned(__builtin_popcount(lanes));
    if (site.kind == CUPYOPS_BLOCK) return;
    const unsigned bytes = site.bytes & ~WHOLE;
    if (site.kind >= CUPYOPS_BULK_LOAD) {
        for (unsigned l = 0; l < WARP; ++l)
            if (lanes >> l & 1) copied(events[l], bytes, site.kind == CUPYOPS_BULK_LOAD);
        return;
    }
    for (unsigned rest = lanes; rest;) {
        // The lanes of one instruction have mostly one array. Different arrays of one memory space share a request.
        const Event& first = events[__builtin_ctz(rest)];
        unsigned same = 0;
        uintptr_t addresses[WARP] = {};
        for (unsigned l = 0; l < WARP; ++l)
            if (rest >> l & 1 && events[l].space == first.space) same |= 1u << l, addresses[l] = events[l].address;
        rest &= ~same;
        const unsigned each = instruction_bytes(bytes, site.bytes & WHOLE, addresses, same);
        for (unsigned done = 0; done < bytes; done += each) {
            request(site, CupyopsSpace(first.space), first.range, addresses, same, each);
            for (uintptr_t& address : addresses) address += each;
        }
    }
}

// Replays the events of a warp, up to the point at which a lane has no event yet and has not ended.
void replay(Warp& w) {
    for (;;) {
        unsigned number = ~0u, lanes = 0;
        for (unsigned l = 0; l < w.lanes.size(); ++l) {
            Lane& one = w.lanes[l];
            if (one.empty()) {
                if (!one.ended) return;
                continue;
            }
            const unsigned site = one.site();
            if (site == number) lanes |= 1u << l;
            else if (number == ~0u || before(site, number)) number = site, lanes = 1u << l;
        }
        if (!lanes) return;
        Event events[WARP];
        for (unsigned l = 0; l < w.lanes.size(); ++l)
            if (lanes >> l & 1) events[l] = w.lanes[l].take();
        execute(number, events, lanes);
    }
}

bool find_lane() {
    if (!cupyops_here(&here)) return false;
    if (lane && here.fibre == last.fibre && here.block == last.block) return true;
    std::vector<Warp>& warps = blocks[here.block];
    if (warps.empty()) {
        warps.resize((threads + WARP - 1) / WARP);
        for (unsigned w = 0; w < warps.size(); ++w) warps[w].lanes.resize(std::min(WARP, threads - w * WARP));
    }
    warp = &warps[here.thread / WARP];
    lane = &warp->lanes[here.thread % WARP];
    last = here;
    return true;
}

void record(unsigned kind, const void* p, size_t bytes, uintptr_t pc, uintptr_t frame) {
    if (!find_lane()) return;
    if (kind != CUPYOPS_BLOCK && size_t(static_cast<const char*>(p) - here.stack) < STACK_BYTES) return;
    if (kind != CUPYOPS_BLOCK) cupyops_check(p, bytes & ~size_t(WHOLE), kind != CUPYOPS_LOAD && kind != CUPYOPS_BULK_LOAD, frame, pc);
    if (bulk && (kind == CUPYOPS_LOAD || kind == CUPYOPS_STORE)) kind = kind == CUPYOPS_LOAD ? CUPYOPS_BULK_LOAD : CUPYOPS_BULK_STORE;
    Event event{0, 0, 0, reinterpret_cast<uintptr_t>(p)};
    if (kind != CUPYOPS_BLOCK && !place(event, kind)) return;
    event.site = site_of(kind, unsigned(bytes), pc, frame);
    if (lane->next >= PATIENCE) lane->drop();
    lane->events.push_back(event);
    if (kind == CUPYOPS_BLOCK || lane->events.size() % PATIENCE) return;
    replay(*warp);
    if (lane->events.size() >= PATIENCE && !bulk) cupyops_pause();
}

}  // namespace

#define FRAME *reinterpret_cast<const uintptr_t*>(__builtin_frame_address(0))
#define PC reinterpret_cast<uintptr_t>(__builtin_return_address(0))
#define RECORD(kind, p, bytes) record(kind, p, bytes, PC, FRAME)

extern "C" {

void cupyops_count_begin(const CupyopsLaunch* launch) {
    sites.clear(), site_numbers.clear(), blocks.clear(), ranges.clear(), touched.clear();
    memset(recent, 0, sizeof recent);
    lane = nullptr, warp = nullptr, bulk = false;
    threads = launch->block[0] * launch->block[1] * launch->block[2];
    for (unsigned i = 0; i < launch->range_count; ++i) ranges.push_back({launch->ranges[i].begin, launch->ranges[i].end, {}, {}});
    touched.resize(ranges.size());
    memset(static_cast<void*>(touched.data()), 0, touched.size() * sizeof(CupyopsTouched));
}

void cupyops_count_end() {
    for (auto& block : blocks)
        for (Warp& w : block.second) {
            for (Lane& one : w.lanes) one.ended = true;
            replay(w);
        }
    blocks.clear();
    ranges.clear();
    lane = nullptr, warp = nullptr;
}

unsigned cupyops_count_sites() { return unsigned(sites.size()); }
const CupyopsSite* cupyops_count_site(unsigned site) { return &sites[site]; }
const CupyopsTouched* cupyops_count_touched() { return touched.data(); }

void cupyops_count_ended() {
    if (!find_lane() || lane->ended) return;
    lane->ended = true;
    if (++warp->ended < warp->lanes.size()) return;
    replay(*warp);
    lane = nullptr;
    std::vector<Warp>& warps = blocks[here.block];
    if (std::all_of(warps.begin(), warps.end(), [](const Warp& w) { return w.ended == w.lanes.size(); })) blocks.erase(here.block);
}

// The compiler inserts calls of these functions.

void __sanitizer_cov_trace_pc() { RECORD(CUPYOPS_BLOCK, nullptr, 0); }
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}

#define ACCESSES(N)                                                                           \
    void __tsan_read##N(void* p) { RECORD(CUPYOPS_LOAD, p, N); }                              \
    void __tsan_write##N(void* p) { RECORD(CUPYOPS_STORE, p, N); }                            \
    void __tsan_unaligned_read##N(void* p) { RECORD(CUPYOPS_LOAD, p, N | WHOLE); }            \
    void __tsan_unaligned_write##N(void* p) { RECORD(CUPYOPS_STORE, p, N | WHOLE); }          \
    void __tsan_read_write##N(void* p) { RECORD(CUPYOPS_LOAD, p, N); RECORD(CUPYOPS_STORE, p, N); } \
    void __tsan_volatile_read##N(void* p) { if (cupyops_here(&here)) cupyops_spin(); RECORD(CUPYOPS_LOAD, p, N); } \
    void __tsan_volatile_write##N(void* p) { RECORD(CUPYOPS_STORE, p, N); }
ACCESSES(1)
ACCESSES(2)
ACCESSES(4)
ACCESSES(8)
ACCESSES(16)

void __tsan_read_range(void* p, unsigned long bytes) { if (bytes) RECORD(CUPYOPS_LOAD, p, bytes | WHOLE); }
void __tsan_write_range(void* p, unsigned long bytes) { if (bytes) RECORD(CUPYOPS_STORE, p, bytes | WHOLE); }
void* __tsan_memcpy(void* to, const void* from, unsigned long bytes) {
    if (bytes) { RECORD(CUPYOPS_LOAD, from, bytes | WHOLE); RECORD(CUPYOPS_STORE, to, bytes | WHOLE); }
    return memcpy(to, from, bytes);
}
void* __tsan_memmove(void* to, const void* from, unsigned long bytes) {
    if (bytes) { RECORD(CUPYOPS_LOAD, from, bytes | WHOLE); RECORD(CUPYOPS_STORE, to, bytes | WHOLE); }
    return memmove(to, from, bytes);
}
void* __tsan_memset(void* to, int value, unsigned long bytes) {
    if (bytes) RECORD(CUPYOPS_STORE, to, bytes | WHOLE);
    return memset(to, value, bytes);
}

// The runtime's functions of the same names check an access. These count the access instead.

void cupyops_touch(const void* p, size_t bytes, int write) { RECORD(write ? CUPYOPS_STORE : CUPYOPS_LOAD, p, bytes | WHOLE); }
void cupyops_touch_by_hardware(const void* p, size_t bytes, int write) { RECORD(write ? CUPYOPS_BULK_STORE : CUPYOPS_BULK_LOAD, p, bytes); }
void cupyops_count_bulk(int on) { bulk = on != 0; }
void cupyops_atomic(const void* p, size_t bytes) {
    cupyops_spin();
    RECORD(CUPYOPS_ATOMIC, p, bytes);
}
void cupyops_look(const void* p, size_t bytes) {
    cupyops_spin();
    RECORD(CUPYOPS_LOAD, p, bytes);
}
}
