/* cpu.c: features from cpuid, sleeping by futex. */
#include "base/cpu.h"

#include <linux/futex.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)

#include <cpuid.h>

static bool has_f16c(void) { /* clang 14 does not know "f16c" by name */
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

static bool has_avxvnni(void) { /* clang 14 does not know it either */
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & 1u << 4);
}

static bool is_amd(void) {
    unsigned a, b, c, d;
    return __get_cpuid(0, &a, &b, &c, &d) && b == signature_AMD_ebx;
}

bool iv_cpu_has(const char *feature) {
#define IS(name) (strcmp(feature, name) == 0)
#define HAS(name) (IS(name) && __builtin_cpu_supports(name))
    __builtin_cpu_init();
    return HAS("avx2") || HAS("fma") || HAS("avx512f") || HAS("avx512bw") || HAS("avx512dq") || HAS("avx512vl") ||
           HAS("avx512bf16") || HAS("avx512vnni") || (IS("avxvnni") && has_avxvnni()) || (IS("f16c") && has_f16c()) ||
           (IS("amd") && is_amd());
#undef HAS
#undef IS
}

#elif defined(__aarch64__)

#include <sys/auxv.h>

bool iv_cpu_has(const char *feature) {
    enum { DOT_PRODUCTS = 1 << 20 }; /* HWCAP_ASIMDDP */
    return strcmp(feature, "dotprod") == 0 && (getauxval(AT_HWCAP) & DOT_PRODUCTS) != 0;
}

#else

bool iv_cpu_has(const char *feature) {
    (void)feature;
    return false;
}

#endif

void iv_cpu_wait(void *word, unsigned seen) { syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0); }
void iv_cpu_wake(void *word, int n) { syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0); }
