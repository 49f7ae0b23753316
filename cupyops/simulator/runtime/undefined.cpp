// Implements the handlers of the undefined-behaviour sanitizer (UBSan), whose library is not linked: each handler
// reports undefined C++ behaviour of the kernel as a fault.
#include "machine.h"

#include <stdio.h>

using namespace simulator;

namespace {

struct Location { const char* file; uint32_t line, column; };
struct Type { uint16_t kind, info; char name[1]; };
struct Overflow { Location location; const Type* type; };
struct Shift { Location location; const Type *left, *right; };
struct Bounds { Location location; const Type *array, *index; };
struct Mismatch { Location location; const Type* type; unsigned char log_alignment, access; };

// Formats an integer of at most 64 bits. UBSan passes wider integers by address; they are formatted as "a value".
void number(char (&out)[40], const Type* type, uintptr_t value) {
    const unsigned bits = 1u << (type->info >> 1), is_signed = type->info & 1;
    if (type->kind != 0 || bits > 64) snprintf(out, sizeof out, "a value");
    else if (is_signed) snprintf(out, sizeof out, "%lld", static_cast<long long>(value << (64 - bits)) >> (64 - bits));
    else snprintf(out, sizeof out, "%llu", static_cast<unsigned long long>(value));
}

CupyopsFault& undefined(const Location& location, void* frame) {
    if (!machine.current) __builtin_trap();
    CupyopsFault& fault = begin_fault(CUPYOPS_UNDEFINED);
    fault.file = location.file;
    fault.line = location.line;
    fault.frame_count = walk(*machine.current, reinterpret_cast<uintptr_t>(frame), fault.frames);
    return fault;
}

// Overflows and shifts corrupt no memory. The code goes on with the wrapped result where bounds alone are checked.
bool ignored() { return machine.current && machine.launch->checked == CUPYOPS_BOUNDS; }

void overflow(const Overflow* data, uintptr_t a, uintptr_t b, const char* sign, void* frame) {
    if (ignored()) return;
    char left[40], right[40];
    number(left, data->type, a), number(right, data->type, b);
    CupyopsFault& fault = undefined(data->location, frame);
    append(fault, "signed overflow: %s %s %s does not fit %s", left, sign, right, data->type->name);
    raise_fault(fault);
}

}  // namespace

#define HERE __builtin_frame_address(0)
#define BOTH(name, parameters, arguments)              \
    void __ubsan_handle_##name##_abort parameters;     \
    void __ubsan_handle_##name##_abort parameters { __ubsan_handle_##name arguments; }

extern "C" {

void __ubsan_handle_add_overflow(Overflow* d, uintptr_t a, uintptr_t b) { overflow(d, a, b, "+", HERE); }
void __ubsan_handle_sub_overflow(Overflow* d, uintptr_t a, uintptr_t b) { overflow(d, a, b, "-", HERE); }
void __ubsan_handle_mul_overflow(Overflow* d, uintptr_t a, uintptr_t b) { overflow(d, a, b, "*", HERE); }

void __ubsan_handle_negate_overflow(Overflow* d, uintptr_t a) {
    if (ignored()) return;
    char text[40];
    number(text, d->type, a);
    CupyopsFault& fault = undefined(d->location, HERE);
    append(fault, "signed overflow: -(%s) does not fit %s", text, d->type->name);
    raise_fault(fault);
}

void __ubsan_handle_divrem_overflow(Overflow* d, uintptr_t a, uintptr_t b) {
    char left[40], right[40];
    number(left, d->type, a), number(right, d->type, b);
    CupyopsFault& fault = undefined(d->location, HERE);
    if (b == 0) append(fault, "divides %s by zero", left);
    else append(fault, "signed overflow: %s / %s does not fit %s", left, right, d->type->name);
    raise_fault(fault);
}

void __ubsan_handle_shift_out_of_bounds(Shift* d, uintptr_t a, uintptr_t b) {
    if (ignored()) return;
    char left[40], right[40];
    number(left, d->left, a), number(right, d->right, b);
    CupyopsFault& fault = undefined(d->location, HERE);
    append(fault, "bad shift: %s by %s, of type %s", left, right, d->left->name);
    raise_fault(fault);
}

void __ubsan_handle_out_of_bounds(Bounds* d, uintptr_t index) {
    char text[40];
    number(text, d->index, index);
    CupyopsFault& fault = undefined(d->location, HERE);
    append(fault, "out of bounds: index %s of an array %s", text, d->array->name);
    raise_fault(fault);
}

// Recent versions of clang call this handler for local arrays. The call has no source location and no index.
void __ubsan_handle_local_out_of_bounds() {
    CupyopsFault& fault = undefined(Location{nullptr, 0, 0}, HERE);
    append(fault, "out of bounds: an index outside a local array");
    raise_fault(fault);
}

void __ubsan_handle_type_mismatch_v1(Mismatch* d, uintptr_t p) {
    const unsigned long alignment = 1ul << d->log_alignment;
    CupyopsFault& fault = undefined(d->location, HERE);
    fault.address = p;
    if (p % alignment) append(fault, "misaligned: %s at address 0x%lx, which is not a multiple of %lu", d->type->name, static_cast<unsigned long>(p), alignment);
    else append(fault, "a null pointer to %s is dereferenced", d->type->name);
    raise_fault(fault);
}

void __ubsan_handle_builtin_unreachable(Location* location) {
    CupyopsFault& fault = undefined(*location, HERE);
    append(fault, "__builtin_unreachable() is reached");
    raise_fault(fault);
}

void __ubsan_handle_missing_return(Location* location) {
    CupyopsFault& fault = undefined(*location, HERE);
    append(fault, "a function ends without the return of its value");
    raise_fault(fault);
}

BOTH(add_overflow, (Overflow * d, uintptr_t a, uintptr_t b), (d, a, b))
BOTH(sub_overflow, (Overflow * d, uintptr_t a, uintptr_t b), (d, a, b))
BOTH(mul_overflow, (Overflow * d, uintptr_t a, uintptr_t b), (d, a, b))
BOTH(negate_overflow, (Overflow * d, uintptr_t a), (d, a))
BOTH(divrem_overflow, (Overflow * d, uintptr_t a, uintptr_t b), (d, a, b))
BOTH(shift_out_of_bounds, (Shift * d, uintptr_t a, uintptr_t b), (d, a, b))
BOTH(out_of_bounds, (Bounds * d, uintptr_t index), (d, index))
BOTH(type_mismatch_v1, (Mismatch * d, uintptr_t p), (d, p))
}
