// Switches the CPU from one fibre's stack to another. x86-64 and AArch64 have assembly here, since swapcontext makes
// system calls on every switch. Other processors use swapcontext.
#pragma once
#include <stddef.h>
#include <stdint.h>

#if defined(__x86_64__) || defined(__aarch64__)
#define CUPYOPS_ALL_ON_STACK 1  // a waiting fibre has all its registers on its stack

extern "C" void cupyops_switch(void** from, void* to);

#if defined(__x86_64__)
__asm__(
    ".text\n.globl cupyops_switch\n.hidden cupyops_switch\n.type cupyops_switch,@function\ncupyops_switch:\n"
    "pushq %rbp\n pushq %rbx\n pushq %r12\n pushq %r13\n pushq %r14\n pushq %r15\n"
    "movq %rsp, (%rdi)\n movq %rsi, %rsp\n"
    "popq %r15\n popq %r14\n popq %r13\n popq %r12\n popq %rbx\n popq %rbp\n ret\n"
    ".size cupyops_switch, .-cupyops_switch\n");

// Prepares a stack: the first switch to the stack calls `start`. The zeros end a debugger's stack trace.
inline void* prepare_stack(char* top, size_t, void (*start)()) {
    void** sp = reinterpret_cast<void**>(reinterpret_cast<uintptr_t>(top) & ~uintptr_t(15));
    *--sp = nullptr;
    *--sp = reinterpret_cast<void*>(start);
    for (int i = 0; i < 6; ++i) *--sp = nullptr;
    return sp;
}
#else
__asm__(
    ".text\n.globl cupyops_switch\n.hidden cupyops_switch\n.type cupyops_switch,%function\ncupyops_switch:\n"
    "sub sp, sp, #160\n"
    "stp x19, x20, [sp, #0]\n stp x21, x22, [sp, #16]\n stp x23, x24, [sp, #32]\n stp x25, x26, [sp, #48]\n"
    "stp x27, x28, [sp, #64]\n stp x29, x30, [sp, #80]\n"
    "stp d8, d9, [sp, #96]\n stp d10, d11, [sp, #112]\n stp d12, d13, [sp, #128]\n stp d14, d15, [sp, #144]\n"
    "mov x9, sp\n str x9, [x0]\n mov sp, x1\n"
    "ldp x19, x20, [sp, #0]\n ldp x21, x22, [sp, #16]\n ldp x23, x24, [sp, #32]\n ldp x25, x26, [sp, #48]\n"
    "ldp x27, x28, [sp, #64]\n ldp x29, x30, [sp, #80]\n"
    "ldp d8, d9, [sp, #96]\n ldp d10, d11, [sp, #112]\n ldp d12, d13, [sp, #128]\n ldp d14, d15, [sp, #144]\n"
    "add sp, sp, #160\n ret\n"
    ".size cupyops_switch, .-cupyops_switch\n");

inline void* prepare_stack(char* top, size_t, void (*start)()) {
    void** sp = reinterpret_cast<void**>(reinterpret_cast<uintptr_t>(top) & ~uintptr_t(15)) - 20;
    for (int i = 0; i < 20; ++i) sp[i] = nullptr;
    sp[11] = reinterpret_cast<void*>(start);  // x30, the return address of the switch
    return sp;
}
#endif

#else

#include <ucontext.h>

inline void cupyops_switch(void** from, void* to) {
    ucontext_t here;
    *from = &here;
    swapcontext(&here, static_cast<ucontext_t*>(to));
}

// The context lies at the top of the stack that it describes.
inline void* prepare_stack(char* top, size_t bytes, void (*start)()) {
    ucontext_t* context = reinterpret_cast<ucontext_t*>(reinterpret_cast<uintptr_t>(top - sizeof(ucontext_t)) & ~uintptr_t(63));
    getcontext(context);
    context->uc_stack.ss_sp = top - bytes;
    context->uc_stack.ss_size = static_cast<size_t>(reinterpret_cast<char*>(context) - (top - bytes)) - 64;
    context->uc_link = nullptr;
    makecontext(context, start, 0);
    return context;
}
#endif
