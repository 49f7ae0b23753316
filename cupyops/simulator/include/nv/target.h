// The macros of <nv/target> that CUDA's headers use. On the host, every test for a GPU architecture is false.
#pragma once
// The code of a branch may be in parentheses or not.
#define CUPYOPS_TARGET_BARE(...) __VA_ARGS__
#define CUPYOPS_TARGET_PROBE(...) ~, BARE
#define CUPYOPS_TARGET_SECOND(a, b, ...) b
#define CUPYOPS_TARGET_KIND(...) CUPYOPS_TARGET_SECOND(__VA_ARGS__, AS_IS, ~)
#define CUPYOPS_TARGET_OPEN_AS_IS(branch) branch
#define CUPYOPS_TARGET_OPEN_BARE(branch) CUPYOPS_TARGET_BARE branch
#define CUPYOPS_TARGET_OPEN_JOIN(kind, branch) CUPYOPS_TARGET_OPEN_##kind(branch)
#define CUPYOPS_TARGET_OPEN_ASK(kind, branch) CUPYOPS_TARGET_OPEN_JOIN(kind, branch)
#define CUPYOPS_TARGET_OPEN(branch) CUPYOPS_TARGET_OPEN_ASK(CUPYOPS_TARGET_KIND(CUPYOPS_TARGET_PROBE branch), branch)
#define CUPYOPS_TARGET_1(yes, no) CUPYOPS_TARGET_OPEN(yes)
#define CUPYOPS_TARGET_0(yes, no) CUPYOPS_TARGET_OPEN(no)
#define CUPYOPS_TARGET_JOIN(answer, yes, no) CUPYOPS_TARGET_##answer(yes, no)
#define CUPYOPS_TARGET_ASK(answer, yes, no) CUPYOPS_TARGET_JOIN(answer, yes, no)
#define NV_IF_ELSE_TARGET(question, yes, no) CUPYOPS_TARGET_ASK(question, yes, no)
#define NV_IF_TARGET(question, yes) CUPYOPS_TARGET_ASK(question, yes, ())
#define NV_IS_HOST 1
#define NV_IS_DEVICE 0
#define NV_ANY_TARGET 1
#define NV_NO_TARGET 0
#define NV_PROVIDES_SM_53 0
#define NV_PROVIDES_SM_60 0
#define NV_PROVIDES_SM_61 0
#define NV_PROVIDES_SM_62 0
#define NV_PROVIDES_SM_70 0
#define NV_PROVIDES_SM_72 0
#define NV_PROVIDES_SM_75 0
#define NV_PROVIDES_SM_80 0
#define NV_PROVIDES_SM_86 0
#define NV_PROVIDES_SM_87 0
#define NV_PROVIDES_SM_89 0
#define NV_PROVIDES_SM_90 0
#define NV_PROVIDES_SM_100 0
#define NV_PROVIDES_SM_101 0
#define NV_PROVIDES_SM_103 0
#define NV_PROVIDES_SM_110 0
#define NV_PROVIDES_SM_120 0
#define NV_PROVIDES_SM_121 0
