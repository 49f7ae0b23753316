// Reads the attributes of a kernel as numbers. The translation repeats the head of the kernel's declaration after the text.
// These macros turn each attribute into a summand, and remove the other words. The repetition comes last: a macro of the
// text that expands to a part of the head then has its final value. `without_attributes.h` ends the macros.
#undef __cluster_dims__
#undef __launch_bounds__
#undef __maxnreg__
#undef __block_size__
#define __cluster_dims__(...) + CupyopsCluster(__VA_ARGS__)
#define __launch_bounds__(...) + CupyopsBounds(__VA_ARGS__)
#define __maxnreg__(n) + CupyopsRegisters(n)
#define __attribute__(...)
#define extern +  // the literal "C" follows
#define static
#define inline
#define void
