// Reads the attributes of a kernel as numbers. The translation repeats the kernel's attributes behind the text, and
// these macros turn each attribute into a member call. The repetition comes last: a macro of the text that expands to
// an attribute then has its final value.
#pragma once
struct CupyopsAttributes {
    unsigned x = 1, y = 1, z = 1, threads = 0;
    constexpr CupyopsAttributes cluster(unsigned cx = 1, unsigned cy = 1, unsigned cz = 1) const { return {cx, cy, cz, threads}; }
    constexpr CupyopsAttributes bounds(unsigned most, unsigned = 0, unsigned = 0) const { return {x, y, z, most}; }
    constexpr CupyopsAttributes ignored(unsigned) const { return *this; }
};
#undef __cluster_dims__
#undef __launch_bounds__
#undef __maxnreg__
#undef __block_size__
#define __cluster_dims__(...) .cluster(__VA_ARGS__)
#define __launch_bounds__(...) .bounds(__VA_ARGS__)
#define __maxnreg__(n) .ignored(n)
// Makes a kernel the one that a module launches.
template <typename P> static void cupyops_choose(CupyopsModule& module, void (*entry)(void**), P, CupyopsAttributes given) {
    module.entry = entry, module.parameter_bytes = P::bytes, module.parameters = P::count;
    module.cluster[0] = given.x, module.cluster[1] = given.y, module.cluster[2] = given.z, module.max_threads = given.threads;
}
