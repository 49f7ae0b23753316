// Checks every memory access of a checked kernel. -fsanitize=thread makes the compiler call a __tsan_ function before
// each access; the functions are here, and the library of ThreadSanitizer is not linked. A valid access is to the
// thread's own stack, to shared memory, to an array of the launch, or to data of the kernel. Every other access is a
// fault.
#include "machine.h"

#include <algorithm>
#include <iterator>
#include <link.h>
#include <map>
#include <new>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

namespace simulator {

// The last accesses to one byte of shared memory: the last write, and two reads, from different warps if possible. A
// thread that writes later then differs from at least one of the two readers.
struct Cell {
    uint64_t write, read[2];
    uint32_t write_pc, read_pc[2];
    uint32_t by_hardware;  // 1 if a bulk copy made the write
};

inline bool same(const Cell& a, const Cell& b) {
    return a.write == b.write && a.read[0] == b.read[0] && a.read[1] == b.read[1] && a.write_pc == b.write_pc &&
           a.read_pc[0] == b.read_pc[0] && a.read_pc[1] == b.read_pc[1] && a.by_hardware == b.by_hardware;
}

struct Shadow {
    Cell* cells = nullptr;  // one cell for each byte of the arena; the system allocates a page on first access
    size_t static_used = 0, dynamic_used = 0;
};

namespace {

struct Segment { uintptr_t begin, end; };
typedef std::vector<Segment> Segments;
std::unordered_map<const CupyopsModule*, Segments> libraries;  // of each kernel's library, the segments that hold constants
const Segments* constants = nullptr;
struct Range { uintptr_t begin, end; bool writable, watched; };
std::vector<Range> ranges;  // the arrays of the launch
// Where bounds alone are checked: the arrays, shared variables and data that the latest reads, and the latest writes, have found.
constexpr unsigned RECENT = 4, SIZES = 5;
struct Found {
    uintptr_t begin;
    size_t limit[SIZES];  // for accesses of 1, 2, 4, 8 and 16 bytes: how many addresses from `begin` on hold one
};
struct Recent {
    Found found[RECENT];
    unsigned next;
} recent[2]{};
void remember(bool write, uintptr_t begin, uintptr_t end) {
    const size_t bytes = end - begin;
    for (const Found& known : recent[write].found)  // found by an access of another number of bytes, or by an atomic one
        if (known.begin == begin && known.limit[0] == bytes) return;
    Found& found = recent[write].found[recent[write].next++ % RECENT];
    found.begin = begin;
    for (unsigned i = 0; i < SIZES; ++i) found.limit[i] = bytes >> i ? bytes - (size_t(1) << i) + 1 : 0;
}
std::map<uintptr_t, uintptr_t> heap;  // the memory that threads have allocated: its first address, and the address after it
size_t heap_used = 0;
size_t own_stack = 0;  // the bytes of a thread's stack where bounds alone are checked, else 0
std::vector<Shadow*> free_shadows;
unsigned last_range = 0;

uint64_t who(uint64_t stamp) { return stamp >> 48 & 0x3FFF; }
inline bool holds(uintptr_t begin, uintptr_t end, uintptr_t address, size_t bytes) {
    return address >= begin && address <= end && end - address >= bytes;
}

}  // namespace

CupyopsFault& access_fault(int kind, const void* p, size_t bytes, bool write, uintptr_t frame, uintptr_t pc) {
    CupyopsFault& fault = begin_fault(kind);
    fault.address = reinterpret_cast<uintptr_t>(p);
    fault.bytes = bytes;
    fault.write = write;
    fault.frames[0] = pc;
    const unsigned rest = walk(*machine.current, frame, fault.frames + 1);
    fault.frame_count = 1 + rest;
    // If the walk, too, begins with `pc`, the duplicate is removed.
    if (rest && fault.frames[1] == pc) {
        memmove(fault.frames, fault.frames + 1, rest * sizeof(uintptr_t));
        fault.frame_count = rest;
    }
    return fault;
}

namespace {

// Names the shared variable at an offset, or the variable closest before the offset.
void name_shared(CupyopsFault& fault, size_t offset) {
    const CupyopsModule& module = *machine.launch->module;
    if (offset >= STATIC_BYTES) {
        fault.shared_variable = -1;
        fault.shared_offset = static_cast<long long>(offset - STATIC_BYTES);
        return;
    }
    for (unsigned i = 0; i < module.shared_count; ++i) {
        const CupyopsShared& s = module.shared[i];
        // The second half of the gap before a variable counts as the variable's, so that the report of s[-1] names s.
        if (fault.shared_variable >= 0 && offset + 32 < s.begin) break;
        fault.shared_variable = int(i);
        fault.shared_offset = static_cast<long long>(offset) - s.begin;
    }
}

unsigned last_variable = 0;  // that in_shared_variable() has found
bool in_shared_variable(size_t offset, size_t bytes) {
    if (offset >= STATIC_BYTES) return holds(STATIC_BYTES, STATIC_BYTES + machine.launch->dynamic_shared, offset, bytes);
    const CupyopsModule& module = *machine.launch->module;
    unsigned& last = last_variable;
    if (last < module.shared_count && offset >= module.shared[last].begin && offset + bytes <= module.shared[last].begin + module.shared[last].bytes) return true;
    for (unsigned i = 0; i < module.shared_count; ++i)
        if (offset >= module.shared[i].begin && offset + bytes <= module.shared[i].begin + module.shared[i].bytes) {
            last = i;
            return true;
        }
    return false;
}

[[noreturn]] void race(Cell& cell, uint64_t stamp, uint32_t pc_low, bool other_write, size_t offset, const void* p, size_t bytes, bool write,
                       uintptr_t frame, uintptr_t pc) {
    CupyopsFault& fault = access_fault(CUPYOPS_SHARED_RACE, p, bytes, write, frame, pc);
    name_shared(fault, offset);
    const Block& other = *machine.current->block->group->blocks[rank_in(stamp)];
    const CupyopsIndex block = other.index, thread = other.fibres[thread_in(stamp)].index;
    fault.other_block[0] = block.x, fault.other_block[1] = block.y, fault.other_block[2] = block.z;
    fault.other_thread[0] = thread.x, fault.other_thread[1] = thread.y, fault.other_thread[2] = thread.z;
    fault.other_write = other_write;
    fault.other_pc = (pc & ~uintptr_t(0xFFFFFFFF)) | pc_low;
    (void)cell;
    raise_fault(fault);
}

[[noreturn]] void not_shown(const Fibre& writer, size_t offset, const void* p, size_t bytes, uintptr_t frame, uintptr_t pc) {
    CupyopsFault& fault = access_fault(CUPYOPS_NOT_SHOWN, p, bytes, false, frame, pc);
    name_shared(fault, offset);
    const CupyopsIndex thread = writer.index;
    fault.other_thread[0] = thread.x, fault.other_thread[1] = thread.y, fault.other_thread[2] = thread.z;
    raise_fault(fault);
}

bool own_read(const Cell& cell, int r, uint64_t stamp) { return (cell.read[r] & VALID) && who(cell.read[r]) == who(stamp); }
bool other_lane(uint64_t read, uint64_t stamp) { return who(read) != who(stamp) && who(read) >> 5 == who(stamp) >> 5; }

void shared_access(Block& owner, size_t offset, const void* p, size_t bytes, Access kind, uintptr_t frame, uintptr_t pc, bool hardware) {
    const bool write = writes(kind), atomic = kind >= Access::VOLATILE_READ;
    if (!in_shared_variable(offset, bytes)) {
        CupyopsFault& fault = access_fault(CUPYOPS_SHARED_BOUNDS, p, bytes, write, frame, pc);
        name_shared(fault, offset);
        raise_fault(fault);
    }
    if (machine.launch->checked == CUPYOPS_BOUNDS) {
        const uintptr_t arena = reinterpret_cast<uintptr_t>(machine.arena);
        const CupyopsShared* const variable = offset < STATIC_BYTES ? &machine.launch->module->shared[last_variable] : nullptr;
        const uintptr_t begin = arena + (variable ? variable->begin : STATIC_BYTES);
        if (size_t(static_cast<const char*>(p) - machine.arena) < ARENA_BYTES) remember(write, begin, begin + (variable ? variable->bytes : machine.launch->dynamic_shared));
        return;
    }
    Fibre& fibre = *machine.current;
    Shadow& shadow = *owner.shadow;
    if (offset < STATIC_BYTES) shadow.static_used = std::max(shadow.static_used, offset + bytes);
    else shadow.dynamic_used = std::max(shadow.dynamic_used, offset - STATIC_BYTES + bytes);
    const uint64_t stamp = stamp_of(fibre, atomic);
    // The bytes of an element are accessed together, so their cells are mostly equal: what became of the last byte's cell
    // then becomes of the next one.
    Cell last, *done = nullptr;
    for (size_t i = offset; i < offset + bytes; ++i) {
        Cell& cell = shadow.cells[i];
        if (done && same(cell, last)) {
            cell = *done;
            continue;
        }
        last = cell;
        done = &cell;
        if (reads(kind) && !(cell.write & VALID)) {
            CupyopsFault& fault = access_fault(CUPYOPS_UNINITIALISED, p, bytes, write, frame, pc);
            name_shared(fault, i);
            raise_fault(fault);
        }
        if (write) cell.by_hardware = hardware;
        if (cell.write == stamp && (write || cell.read[0] == stamp)) {
            if (write) cell.read[0] = cell.read[1] = 0;
            continue;
        }
        if ((cell.write & VALID) && !(atomic && (cell.write & ATOMIC)) && !before(cell.write, false, fibre))
            race(cell, cell.write, cell.write_pc, true, i, p, bytes, write, frame, pc);
        if (hardware && !write && !cell.by_hardware) {
            const Fibre& writer = owner.group->blocks[rank_in(cell.write)]->fibres[thread_in(cell.write)];
            if (!shown(cell.write, writer)) not_shown(writer, i, p, bytes, frame, pc);
        }
        if (write) {
            // A lane that replaces a volatile value which it has read, while another lane of its warp reads the value, counts on
            // lanes that run in step. A flag's writer does not read the flag.
            const bool replaces = kind == Access::VOLATILE_WRITE && (own_read(cell, 0, stamp) || own_read(cell, 1, stamp));
            for (int r = 0; r < 2; ++r)
                if ((cell.read[r] & VALID) && !(atomic && (cell.read[r] & ATOMIC) && !(replaces && other_lane(cell.read[r], stamp))) && !before(cell.read[r], true, fibre)) race(cell, cell.read[r], cell.read_pc[r], false, i, p, bytes, write, frame, pc);
            cell = Cell{stamp, {0, 0}, uint32_t(pc), {0, 0}, hardware};
        } else if (!(cell.read[0] & VALID) || who(cell.read[0]) == who(stamp) || before(cell.read[0], true, fibre)) {
            cell.read[0] = stamp;
            cell.read_pc[0] = uint32_t(pc);
        } else if (!(cell.read[1] & VALID) || who(cell.read[1]) >> 5 == who(cell.read[0]) >> 5 || before(cell.read[1], true, fibre)) {
            cell.read[1] = stamp;
            cell.read_pc[1] = uint32_t(pc);
        }
    }
}

// Returns whether an access lies within a variable of the library, or reads its constants.
bool in_variable(uintptr_t address, size_t bytes, bool write) {
    const CupyopsModule& module = *machine.launch->module;
    static unsigned latest = 0;  // the variable that was found last
    for (unsigned i = 0; i < module.variable_count; ++i) {
        const unsigned n = i ? i - 1 < latest ? i - 1 : i : std::min(latest, module.variable_count - 1);
        const CupyopsRange& v = module.variables[n];
        if (!holds(v.begin, v.end, address, bytes) || (write && !v.writable)) continue;
        latest = n;
        if (machine.launch->checked == CUPYOPS_BOUNDS) remember(write, v.begin, v.end);
        return true;
    }
    for (const Segment& s : *constants)
        if (!write && holds(s.begin, s.end, address, bytes)) {
            if (machine.launch->checked == CUPYOPS_BOUNDS) remember(write, s.begin, s.end);
            return true;
        }
    return false;
}

void access(const void* p, size_t bytes, Access kind, uintptr_t frame, uintptr_t pc, bool hardware = false) {
    Fibre* const fibre = machine.current;
    if (!fibre || !machine.launch->checked) return;
    settle();
    pause_at(frame);
    const bool write = writes(kind);
    const char* const at = static_cast<const char*>(p);
    const uintptr_t low = reinterpret_cast<uintptr_t>(fibre->stack.low);
    if (holds(low, low + STACK_BYTES, reinterpret_cast<uintptr_t>(p), bytes)) return;
    if (write && kind != Access::ATOMIC) ++machine.changes;
    const uintptr_t address = reinterpret_cast<uintptr_t>(p);
    if (last_range < ranges.size()) {
        const Range& r = ranges[last_range];
        if (holds(r.begin, r.end, address, bytes) && (r.writable || !write)) {
            if (r.watched) global_access(at, bytes, kind, frame, pc);
            if (machine.launch->checked == CUPYOPS_BOUNDS) remember(write, r.begin, r.end);
            return;
        }
    }
    if (size_t(at - machine.arena) < ARENA_BYTES) return shared_access(*fibre->block, size_t(at - machine.arena), p, bytes, kind, frame, pc, hardware);
    for (unsigned i = 0; i < ranges.size(); ++i) {
        const Range& r = ranges[i];
        if (holds(r.begin, r.end, address, bytes)) {
            last_range = i;
            if (write && !r.writable) raise_fault(access_fault(CUPYOPS_CONST_WRITE, p, bytes, write, frame, pc));
            if (r.watched) global_access(at, bytes, kind, frame, pc);
            if (machine.launch->checked == CUPYOPS_BOUNDS) remember(write, r.begin, r.end);
            return;
        }
    }
    Group& group = *fibre->block->group;
    if (group.saved && size_t(at - group.saved.get()) < group.saved_bytes) {
        const size_t offset = size_t(at - group.saved.get());
        Block& owner = *group.blocks[offset / ARENA_BYTES];
        if (owner.ended() || !owner.begun) {
            CupyopsFault& fault = access_fault(CUPYOPS_REMOTE_ENDED, p, bytes, write, frame, pc);
            name_shared(fault, offset % ARENA_BYTES);
            const CupyopsIndex block = owner.index;
            fault.other_block[0] = block.x, fault.other_block[1] = block.y, fault.other_block[2] = block.z;
            append(fault, owner.ended() ? "has ended" : "has not begun");
            raise_fault(fault);
        }
        return shared_access(owner, offset % ARENA_BYTES, p, bytes, kind, frame, pc, hardware);
    }
    if (in_variable(address, bytes, write)) return;
    const auto behind = heap.upper_bound(address);
    if (behind != heap.begin() && holds(std::prev(behind)->first, std::prev(behind)->second, address, bytes)) return;
    raise_fault(access_fault(CUPYOPS_GLOBAL_BOUNDS, p, bytes, write, frame, pc));
}

// Records an atomic or volatile access to a flag. A flag in shared memory has one address for all blocks of the
// cluster.
void signal(const void* p, Access kind) {
    Fibre* const fibre = machine.current;
    if (!fibre || machine.launch->checked <= CUPYOPS_BOUNDS) return;
    if (size_t(static_cast<const char*>(p) - fibre->stack.low) < STACK_BYTES) return;  // on the thread's own stack
    const size_t offset = size_t(static_cast<const char*>(p) - machine.arena);
    Group& group = *fibre->block->group;
    uintptr_t flag = reinterpret_cast<uintptr_t>(p);
    if (offset < ARENA_BYTES && group.saved) flag = reinterpret_cast<uintptr_t>(fibre->block->saved) + offset;
    // Flags in shared memory belong to their group; flags in global memory belong to the launch.
    const bool own = offset < ARENA_BYTES || (group.saved && size_t(static_cast<const char*>(p) - group.saved.get()) < group.saved_bytes);
    Flags& flags = own ? group.flags : machine.flags;
    if (reads(kind)) flag_read(*fibre, flags, flag);
    if (writes(kind)) flag_written(*fibre, flags, flag);
}

struct Wanted { uintptr_t module; Segments constants; };

int add_segments(dl_phdr_info* info, size_t, void* data) {
    Wanted& wanted = *static_cast<Wanted*>(data);
    bool found = false;
    for (int i = 0; i < info->dlpi_phnum; ++i) {
        const auto& header = info->dlpi_phdr[i];
        found |= header.p_type == PT_LOAD && wanted.module - (info->dlpi_addr + header.p_vaddr) < header.p_memsz;
    }
    for (int i = 0; found && i < info->dlpi_phnum; ++i) {
        const auto& header = info->dlpi_phdr[i];
        const uintptr_t begin = info->dlpi_addr + header.p_vaddr, end = begin + header.p_memsz;
        // The loader protects the addresses of PT_GNU_RELRO when it has filled them in.
        if (header.p_type == PT_GNU_RELRO || (header.p_type == PT_LOAD && !(header.p_flags & PF_W)))
            wanted.constants.push_back({begin, end});
    }
    return found;
}

}  // namespace

// Finds the memory that the kernel may access: the arrays of the launch, and the kernel's constants and __device__
// variables.
void find_memory(const CupyopsModule* module) {
    last_range = 0;
    recent[0] = recent[1] = Recent{};
    const CupyopsLaunch& launch = *machine.launch;
    own_stack = launch.checked == CUPYOPS_BOUNDS ? STACK_BYTES : 0;
    ranges.clear();
    for (unsigned i = 0; i < launch.range_count; ++i) {
        const CupyopsRange& r = launch.ranges[i];
        // An array is checked for races if it is writable or overlaps a writable array. Other arrays are only read.
        bool watched = false;
        for (unsigned k = 0; k < launch.range_count && launch.checked == CUPYOPS_ALL_CHECKS; ++k)
            watched |= launch.ranges[k].writable && launch.ranges[k].begin < r.end && r.begin < launch.ranges[k].end;
        ranges.push_back({r.begin, r.end, r.writable != 0, watched});
    }
    const auto known = libraries.find(module);
    if (known == libraries.end()) {
        Wanted wanted{reinterpret_cast<uintptr_t>(module), {}};
        dl_iterate_phdr(add_segments, &wanted);
        constants = &libraries.emplace(module, std::move(wanted.constants)).first->second;
    } else {
        constants = &known->second;
    }
}

Shadow* take_shadow() {
    if (free_shadows.empty()) {
        void* memory = mmap(nullptr, ARENA_BYTES * sizeof(Cell), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED) throw std::bad_alloc();
        Shadow* shadow = new Shadow;
        shadow->cells = static_cast<Cell*>(memory);
        free_shadows.push_back(shadow);
    }
    Shadow* shadow = free_shadows.back();
    free_shadows.pop_back();
    return shadow;
}

void give_shadow_back(Shadow* shadow) {
    memset(static_cast<void*>(shadow->cells), 0, shadow->static_used * sizeof(Cell));
    memset(static_cast<void*>(shadow->cells + STATIC_BYTES), 0, shadow->dynamic_used * sizeof(Cell));
    shadow->static_used = shadow->dynamic_used = 0;
    free_shadows.push_back(shadow);
}

}  // namespace simulator

using namespace simulator;

// Returns whether an access lies in memory that was found before, or on the thread's own stack. Most accesses end here, and
// most of a constant number of bytes at one comparison.
template <bool WRITE, unsigned BYTES> static inline bool inside(const void* p) {
    constexpr unsigned size = BYTES == 1 ? 0 : BYTES == 2 ? 1 : BYTES == 4 ? 2 : BYTES == 8 ? 3 : 4;
    static_assert(BYTES == 1u << size && size < SIZES, "a size that `Found` has");
    const uintptr_t address = reinterpret_cast<uintptr_t>(p);
    for (const Found& f : recent[WRITE].found)
        if (__builtin_expect(address - f.begin < f.limit[size], 1)) {
            machine.changes += WRITE;
            return true;
        }
    const Fibre* const fibre = machine.current;
    return fibre && address - reinterpret_cast<uintptr_t>(fibre->stack.low) < own_stack && fibre->stack.low + STACK_BYTES - BYTES >= p;
}

#define FRAME reinterpret_cast<uintptr_t>(__builtin_frame_address(0))
#define PC reinterpret_cast<uintptr_t>(__builtin_return_address(0))

extern "C" {
// The heap of a GPU keeps its memory from launch to launch. It has 8 MiB, cudaLimitMallocHeapSize.
void* cupyops_allocate(size_t bytes) {
    constexpr size_t HEAP_BYTES = 8 << 20;
    if (bytes > HEAP_BYTES - heap_used) return nullptr;
    void* const memory = malloc(bytes ? bytes : 1);
    const uintptr_t first = reinterpret_cast<uintptr_t>(memory);
    if (memory) heap[first] = first + bytes, heap_used += bytes;
    return memory;
}

void cupyops_deallocate(void* memory) {
    if (!memory) return;
    const auto found = heap.find(reinterpret_cast<uintptr_t>(memory));
    if (found == heap.end()) {
        CupyopsFault& fault = begin_fault(CUPYOPS_UNDEFINED);
        fault.frame_count = walk(*machine.current, FRAME, fault.frames);
        append(fault, "frees address %p, which malloc and new have not given, or which is free already", memory);
        raise_fault(fault);
    }
    heap_used -= found->second - found->first;
    heap.erase(found);
    free(memory);
}

void cupyops_touch(const void* p, size_t bytes, int write) { access(p, bytes, write ? Access::WRITE : Access::READ, FRAME, PC); }

void cupyops_check(const void* p, size_t bytes, int write, uintptr_t frame, uintptr_t pc) {
    access(p, bytes, write ? Access::WRITE : Access::READ, frame, pc);
}

void cupyops_touch_by_hardware(const void* p, size_t bytes, int write) {
    access(p, bytes, write ? Access::WRITE : Access::READ, FRAME, PC, true);
}

void cupyops_atomic(const void* p, size_t bytes) {
    cupyops_spin();  // comes first: other threads may run in it and change the memory
    if (reinterpret_cast<uintptr_t>(p) % bytes) {
        CupyopsFault& fault = access_fault(CUPYOPS_UNDEFINED, p, bytes, true, FRAME, PC);
        append(fault, "misaligned: an atomic operation on %u bytes at address %p", unsigned(bytes), p);
        raise_fault(fault);
    }
    access(p, bytes, Access::ATOMIC, FRAME, PC);
    signal(p, Access::ATOMIC);
}

void cupyops_look(const void* p, size_t bytes) {
    cupyops_spin();
    access(p, bytes, Access::VOLATILE_READ, FRAME, PC);
    signal(p, Access::VOLATILE_READ);
}

void cupyops_changed() { ++machine.changes; }

void* cupyops_shared(CupyopsModule* module, const char* name, size_t bytes, size_t element_bytes, size_t alignment) {
    constexpr size_t GAP = 64;
    const size_t align = std::max<size_t>(alignment, 16);
    const size_t begin = (module->shared_end + GAP + align - 1) / align * align;
    const bool fits = begin + bytes + GAP <= STATIC_BYTES && module->shared_count < CUPYOPS_MAX_SHARED_VARIABLES;
    module->shared_bytes += bytes;
    module->shared_largest = std::max(module->shared_largest, bytes);
    const size_t needed = machine.current && machine.launch->alone ? module->shared_bytes : module->shared_largest;
    const bool too_many = machine.current && needed + machine.launch->dynamic_shared > CUPYOPS_MAX_SHARED;
    if (machine.current && (!fits || too_many || needed > CUPYOPS_MAX_STATIC_SHARED)) {
        CupyopsFault& fault = begin_fault(CUPYOPS_LIMIT);
        if (needed > CUPYOPS_MAX_STATIC_SHARED) append(fault, "needs %u bytes of static shared memory, with `%s`, and a GPU has at most %d for a block. Make it dynamic: `extern __shared__`, and shared= of Kernel", unsigned(needed), name, CUPYOPS_MAX_STATIC_SHARED);
        else if (too_many) append(fault, "needs %u bytes of static and %u of dynamic shared memory, and a GPU has at most %d for a block", unsigned(needed), machine.launch->dynamic_shared, CUPYOPS_MAX_SHARED);
        else append(fault, "the shared variables exceed the simulator's limits (256 variables, 256 KiB)");
        raise_fault(fault);
    }
    if (!fits) return arena();  // while the library is loaded: no launch follows, since the bytes exceed the limit
    module->shared[module->shared_count++] = {name, unsigned(begin), unsigned(bytes), unsigned(element_bytes)};
    module->shared_end = unsigned(begin + bytes + GAP);
    memset(arena() + begin, 0xFF, bytes);
    return arena() + begin;
}

void* cupyops_dynamic_shared() { return arena() + STATIC_BYTES; }
unsigned cupyops_dynamic_bytes() { return machine.launch->dynamic_shared; }
int cupyops_is_shared(const void* p) { return size_t(static_cast<const char*>(p) - machine.arena) < ARENA_BYTES; }
unsigned cupyops_shared_address(const void* p) { return unsigned(static_cast<const char*>(p) - machine.arena); }

// The compiler inserts calls of these functions.

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}

#define READ(p, N) if (!inside<false, N>(p)) access(p, N, Access::READ, FRAME, PC)
#define WRITE(p, N) if (!inside<true, N>(p)) access(p, N, Access::WRITE, FRAME, PC)
#define VOLATILE_READ(p, N)                         \
    if (machine.current) cupyops_spin();            \
    access(p, N, Access::VOLATILE_READ, FRAME, PC); \
    signal(p, Access::VOLATILE_READ)
#define VOLATILE_WRITE(p, N)                         \
    access(p, N, Access::VOLATILE_WRITE, FRAME, PC); \
    signal(p, Access::VOLATILE_WRITE)

#define ACCESSES(N)                                                           \
    void __tsan_read##N(void* p) { READ(p, N); }                              \
    void __tsan_write##N(void* p) { WRITE(p, N); }                            \
    void __tsan_unaligned_read##N(void* p) { READ(p, N); }                    \
    void __tsan_unaligned_write##N(void* p) { WRITE(p, N); }                  \
    void __tsan_read_write##N(void* p) { READ(p, N); WRITE(p, N); }           \
    void __tsan_unaligned_read_write##N(void* p) { READ(p, N); WRITE(p, N); } \
    void __tsan_volatile_read##N(void* p) { VOLATILE_READ(p, N); }            \
    void __tsan_volatile_write##N(void* p) { VOLATILE_WRITE(p, N); }          \
    void __tsan_unaligned_volatile_read##N(void* p) { VOLATILE_READ(p, N); }  \
    void __tsan_unaligned_volatile_write##N(void* p) { VOLATILE_WRITE(p, N); }
ACCESSES(1)
ACCESSES(2)
ACCESSES(4)
ACCESSES(8)
ACCESSES(16)

void __tsan_read_range(void* p, unsigned long bytes) { if (bytes) { access(p, bytes, Access::READ, FRAME, PC); } }
void __tsan_write_range(void* p, unsigned long bytes) { if (bytes) { access(p, bytes, Access::WRITE, FRAME, PC); } }
void* __tsan_memcpy(void* to, const void* from, unsigned long bytes) {
    if (bytes) { access(from, bytes, Access::READ, FRAME, PC); access(to, bytes, Access::WRITE, FRAME, PC); }
    return memcpy(to, from, bytes);
}
void* __tsan_memmove(void* to, const void* from, unsigned long bytes) {
    if (bytes) { access(from, bytes, Access::READ, FRAME, PC); access(to, bytes, Access::WRITE, FRAME, PC); }
    return memmove(to, from, bytes);
}
void* __tsan_memset(void* to, int value, unsigned long bytes) {
    if (bytes) { access(to, bytes, Access::WRITE, FRAME, PC); }
    return memset(to, value, bytes);
}
}
