// Ends the macros of attributes.h that have names of C++.
#undef __attribute__
#undef extern
#undef static
#undef inline
#undef void
