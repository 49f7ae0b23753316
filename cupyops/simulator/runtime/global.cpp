// Finds races in global memory that a launch may write: two threads access a byte, at least one of them writes, and
// nothing orders the two accesses. Blocks run one after the other, so the block of the first access may have ended.
#include "machine.h"

#include <stdlib.h>
#include <string.h>

namespace simulator {

namespace {

// The last accesses to some bytes: the last write, and two reads, from different blocks if possible. Cell in checks.cpp
// is the counterpart for shared memory.
struct Place {
    uint64_t write, read[2];
    uint16_t write_site, read_site[2], unused;  // indices into `sites`; 0 if `sites` was full
};

// A page has a Place for every 1 << shift bytes: 16 bytes at first, and fewer after an access that begins or ends
// inside 16.
constexpr unsigned PAGE_SHIFT = 9, WIDEST = 4;
constexpr size_t PAGE_BYTES = size_t(1) << PAGE_SHIFT;
struct Page {
    uintptr_t key = 0;  // address >> PAGE_SHIFT, 0 for none
    Place* places = nullptr;
    unsigned shift = 0;
};

// The pages that the launch has accessed, by address: an open-addressing hash table whose size is a power of two.
std::vector<Page> pages;
size_t page_count = 0;

// Memory for places, in chunks that the next launch reuses.
constexpr size_t CHUNK_BYTES = 1 << 20, KEPT_CHUNKS = 64;
std::vector<char*> chunks;
size_t chunk = 0, chunk_used = 0;

struct Site { uintptr_t pc, caller; };
struct KnownSite { Site site; uint16_t number; };
std::vector<Site> sites;
std::unordered_map<uintptr_t, std::vector<uint16_t>> sites_by_pc;
KnownSite latest_sites[256];

// The held race of two writes: the address, and the bytes before the second write.
uintptr_t held_at;
size_t held_bytes;
char held_before[16];

uint64_t who(uint64_t stamp) { return stamp & ~GLOBAL_ATOMIC & ~LAST_CLOCK; }
uint64_t block_of(uint64_t stamp) { return (stamp & ~GLOBAL_ATOMIC) >> RANK_AT; }
uint64_t warp_of(uint64_t stamp) { return (stamp & ~GLOBAL_ATOMIC) >> THREAD_AT >> 5; }

uint16_t site_of(uintptr_t frame, uintptr_t pc) {
    // The site includes the caller of the accessing function. That function may be a CUDA load or atomic operation,
    // whose own line lies outside the text.
    const uintptr_t up = *reinterpret_cast<const uintptr_t*>(frame), low = reinterpret_cast<uintptr_t>(machine.current->stack.low);
    const uintptr_t caller = up - low < STACK_BYTES - 16 ? reinterpret_cast<const uintptr_t*>(up)[1] : 0;
    KnownSite& latest = latest_sites[(pc ^ pc >> 8 ^ caller) & 255];
    if (latest.site.pc == pc && latest.site.caller == caller) return latest.number;
    std::vector<uint16_t>& there = sites_by_pc[pc];
    uint16_t number = 0;
    for (uint16_t n : there)
        if (sites[n].caller == caller) number = n;
    if (!number && sites.size() <= UINT16_MAX) {
        number = uint16_t(sites.size());
        sites.push_back({pc, caller});
        there.push_back(number);
    }
    latest = {{pc, caller}, number};
    return number;
}

Place* places_of(unsigned shift) {
    const size_t bytes = (PAGE_BYTES >> shift) * sizeof(Place);
    if (chunk == chunks.size() || chunk_used + bytes > CHUNK_BYTES) {
        if (chunk < chunks.size()) ++chunk;
        if (chunk == chunks.size()) {
            char* const memory = static_cast<char*>(malloc(CHUNK_BYTES));
            if (!memory) {
                CupyopsFault& fault = begin_fault(CUPYOPS_LIMIT);
                append(fault, "the host has too little memory for the race check of global memory");
                raise_fault(fault);
            }
            chunks.push_back(memory);
        }
        chunk_used = 0;
    }
    char* const begin = chunks[chunk] + chunk_used;
    chunk_used += bytes;
    memset(begin, 0, bytes);
    return reinterpret_cast<Place*>(begin);
}

Page& slot_of(uintptr_t key) {
    const size_t mask = pages.size() - 1;
    size_t i = size_t(key * 0x9E3779B97F4A7C15ull >> 32) & mask;
    while (pages[i].key && pages[i].key != key) i = (i + 1) & mask;
    return pages[i];
}

void grow() {
    std::vector<Page> old(pages.empty() ? 1024 : 2 * pages.size());
    old.swap(pages);
    for (const Page& page : old)
        if (page.key) slot_of(page.key) = page;
}

Page& page_of(uintptr_t address, unsigned shift) {
    const uintptr_t key = address >> PAGE_SHIFT;
    if (2 * page_count >= pages.size()) grow();
    Page& page = slot_of(key);
    if (!page.key) {
        page.places = places_of(shift);
        page.shift = shift;
        page.key = key;
        ++page_count;
    } else if (page.shift > shift) {
        Place* const finer = places_of(shift);
        for (size_t i = 0; i < PAGE_BYTES >> shift; ++i) finer[i] = page.places[i >> (page.shift - shift)];
        page.places = finer;
        page.shift = shift;
    }
    return page;
}

inline bool ordered(uint64_t stamp, bool read, const Fibre& now) {
    return who(stamp) == now.name || before_in_global(stamp, read, now);
}

// Returns whether the place's write was atomic or volatile, and an atomic or volatile read that is ordered before `now`
// has read it; the reads of a place come after its write. A thread that found a flag set may then reset it with a plain
// write.
bool seen(const Place& place, const Fibre& now) {
    if (!(place.write & GLOBAL_ATOMIC)) return false;
    for (uint64_t read : place.read)
        if (read & GLOBAL_ATOMIC && ordered(read, true, now)) return true;
    return false;
}

CupyopsFault& race(uint64_t stamp, uint16_t site, bool other_write, uintptr_t address, size_t bytes, bool write, uintptr_t frame, uintptr_t pc) {
    CupyopsFault& fault = access_fault(CUPYOPS_GLOBAL_RACE, reinterpret_cast<const void*>(address), bytes, write, frame, pc);
    const unsigned* size = machine.launch->block;
    const unsigned thread = unsigned(stamp >> THREAD_AT) & 1023;
    const CupyopsIndex block = block_index(machine.first_group + group_in(stamp), unsigned(stamp >> RANK_AT) & 15);
    fault.other_block[0] = block.x, fault.other_block[1] = block.y, fault.other_block[2] = block.z;
    fault.other_thread[0] = thread % size[0], fault.other_thread[1] = thread / size[0] % size[1], fault.other_thread[2] = thread / size[0] / size[1];
    fault.other_write = other_write;
    fault.other_pc = sites[site].pc, fault.other_caller = sites[site].caller;
    return fault;
}

// Holds the report of a race: the second write reaches memory after this check, before its thread next calls the
// runtime.
void hold(uintptr_t address, size_t bytes) {
    held_at = address, held_bytes = bytes;
    memcpy(held_before, reinterpret_cast<const void*>(address), bytes);
    machine.held = true;
}

}  // namespace

void raise_held() {
    machine.held = false;
    fault_record.same_value = memcmp(held_before, reinterpret_cast<const void*>(held_at), held_bytes) == 0;
    raise_fault(fault_record);
}

void forget_global_memory() {
    if (pages.size() > 1 << 16) std::vector<Page>().swap(pages);
    else if (page_count) std::fill(pages.begin(), pages.end(), Page());
    page_count = 0;
    while (chunks.size() > KEPT_CHUNKS) {
        free(chunks.back());
        chunks.pop_back();
    }
    chunk = chunk_used = 0;
    sites.assign(1, Site{0, 0});
    sites_by_pc.clear();
    memset(latest_sites, 0, sizeof latest_sites);
}

void global_access(const char* p, size_t bytes, Access kind, uintptr_t frame, uintptr_t pc) {
    const Fibre& fibre = *machine.current;
    if (fibre.block->group->number >= GROUPS || !bytes) return;
    const bool write = writes(kind), atomic = kind >= Access::VOLATILE_READ;
    const uint64_t clock = fibre.clock() < LAST_CLOCK ? fibre.clock() : LAST_CLOCK;
    const uint64_t stamp = fibre.name | clock | (atomic ? GLOBAL_ATOMIC : 0);
    const uint16_t site = site_of(frame, pc);
    const uintptr_t begin = reinterpret_cast<uintptr_t>(p), end = begin + bytes;
    const unsigned shift = unsigned(__builtin_ctzll(begin | bytes | size_t(1) << WIDEST));
    for (uintptr_t at = begin; at < end;) {
        const Page page = page_of(at, shift);
        const uintptr_t page_end = (at | (PAGE_BYTES - 1)) + 1, until = end < page_end ? end : page_end;
        const size_t each = size_t(1) << page.shift;
        for (; at < until; at += each) {
            Place& place = page.places[(at & (PAGE_BYTES - 1)) >> page.shift];
            if (place.write == stamp) {
                // This thread's write has the same stamp. A later access that races with this access races with that
                // write, too, so this access needs no record.
                if (write) place.read[0] = place.read[1] = 0;
                continue;
            }
            if (place.write && !(atomic && place.write & GLOBAL_ATOMIC) && !ordered(place.write, false, fibre) && !seen(place, fibre)) {
                CupyopsFault& fault = race(place.write, place.write_site, true, at, each, write, frame, pc);
                if (!write || kind == Access::ATOMIC) raise_fault(fault);
                return hold(at, each);
            }
            if (write) {
                for (int r = 0; r < 2; ++r)
                    if (place.read[r] && !(atomic && place.read[r] & GLOBAL_ATOMIC) && !ordered(place.read[r], true, fibre))
                        raise_fault(race(place.read[r], place.read_site[r], false, at, each, write, frame, pc));
                place = Place{stamp, {0, 0}, site, {0, 0}, 0};
                continue;
            }
            int r = 0;
            if (place.read[0] && place.read[0] != stamp && !ordered(place.read[0], true, fibre)) {
                const uint64_t first = place.read[0], second = place.read[1];
                const bool vacant = !second || second == stamp || ordered(second, true, fibre) || (atomic && second & GLOBAL_ATOMIC);
                // The two kept reads are from different blocks if possible, else from different warps: a barrier of one
                // block or a sync of one warp then cannot order a later write after both.
                const bool nearer = block_of(second) == block_of(first) && (block_of(stamp) != block_of(first) || warp_of(second) == warp_of(first));
                if (!vacant && !nearer) continue;
                r = 1;
            }
            place.read[r] = stamp;
            place.read_site[r] = site;
        }
    }
}

}  // namespace simulator
