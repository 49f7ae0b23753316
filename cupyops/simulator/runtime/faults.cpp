// Records a fault: the thread, the address and the call stack. Python writes the error message from the record.
#include "machine.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

namespace simulator {

CupyopsFault fault_record;

CupyopsFault& begin_fault(int kind) {
    memset(&fault_record, 0, sizeof fault_record);
    machine.held = false;
    fault_record.kind = kind;
    fault_record.shared_variable = -2;
    if (machine.current) place(fault_record, *machine.current);
    return fault_record;
}

void place(CupyopsFault& fault, const Fibre& fibre) {
    const CupyopsIndex block = fibre.block->index, thread = fibre.index;
    fault.block[0] = block.x, fault.block[1] = block.y, fault.block[2] = block.z;
    fault.thread[0] = thread.x, fault.thread[1] = thread.y, fault.thread[2] = thread.z;
}

// Walks the call stack from a frame and writes the return addresses to `out`; returns their number. The walk ends at
// the end of the fibre's stack. It needs frame pointers, with which kernels and runtime are compiled.
unsigned walk(const Fibre& fibre, uintptr_t frame, uintptr_t* out) {
    const uintptr_t low = reinterpret_cast<uintptr_t>(fibre.stack.low), high = low + STACK_BYTES - 16;
    unsigned count = 0;
    while (frame >= low && frame < high && frame % 8 == 0 && count < CUPYOPS_FRAMES - 1) {
        const uintptr_t* pair = reinterpret_cast<const uintptr_t*>(frame);
        if (!pair[1]) break;
        out[count++] = pair[1];
        if (pair[0] <= frame) break;
        frame = pair[0];
    }
    return count;
}

unsigned waiting_frames(const Fibre& fibre, uintptr_t* out) {
    return fibre.waiting_frame ? walk(fibre, fibre.waiting_frame, out) : 0;
}

void raise_fault(CupyopsFault&) { abandon(1); }

void frozen(void* frame) {
    CupyopsFault& fault = begin_fault(CUPYOPS_BARRIER);
    fault.frame_count = walk(*machine.current, reinterpret_cast<uintptr_t>(frame), fault.frames);
    append(fault, "waits for ever: the remaining threads only read memory that none of them changes");
    raise_fault(fault);
}

void append(CupyopsFault& fault, const char* format, ...) {
    const size_t used = strlen(fault.text);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(fault.text + used, sizeof fault.text - used, format, arguments);
    va_end(arguments);
}

}  // namespace simulator

using namespace simulator;

extern "C" {

const CupyopsFault* cupyops_fault() { return &fault_record; }
size_t cupyops_fault_bytes() { return sizeof(CupyopsFault); }

void cupyops_assert(const char* expression, const char* file, unsigned line, const char* function) {
    CupyopsFault& fault = begin_fault(CUPYOPS_ASSERT);
    fault.file = file;
    fault.line = line;
    append(fault, "assertion `%s` failed in %s", expression, function);
    raise_fault(fault);
}

void cupyops_trap() {
    CupyopsFault& fault = begin_fault(CUPYOPS_ASSERT);
    fault.frame_count = walk(*machine.current, reinterpret_cast<uintptr_t>(__builtin_frame_address(0)), fault.frames);
    append(fault, "__trap() was called");
    raise_fault(fault);
}

void cupyops_misuse(const char* words) {
    CupyopsFault& fault = begin_fault(CUPYOPS_ASSERT);
    fault.frame_count = walk(*machine.current, reinterpret_cast<uintptr_t>(__builtin_frame_address(0)), fault.frames);
    append(fault, "%s", words);
    raise_fault(fault);
}

// The text is made first: a thread that ends in the midst of it, for a wild %s, leaves no lock of the C library held.
int cupyops_printf(const char* format, ...) {
    for (const char* p = format; (p = strchr(p, '%')); ++p) {
        p += 1 + strspn(p + 1, "-+ #0123456789.*'hljztL");
        if (*p == 'n') cupyops_misuse("printf writes a number (%n), which CUDA's printf cannot");
        if (!*p) break;
    }
    WAITS_HERE((*machine.current));  // for a fault in the C library, whose frames have no pointers
    char text[4096];
    va_list arguments;
    va_start(arguments, format);
    uninterrupted(true);  // a pause inside the C library may find a lock held
    const int count = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (count >= int(sizeof text)) {
        va_start(arguments, format);
        vprintf(format, arguments);
        va_end(arguments);
    } else if (count > 0) {
        fwrite(text, 1, size_t(count), stdout);
    }
    fflush(stdout);
    uninterrupted(false);
    return count;
}

void cupyops_smashed() {
    CupyopsFault& fault = begin_fault(CUPYOPS_UNDEFINED);
    fault.frame_count = walk(*machine.current, reinterpret_cast<uintptr_t>(__builtin_frame_address(0)), fault.frames);
    append(fault, "out of bounds: the function has written past a local array");
    raise_fault(fault);
}
}
