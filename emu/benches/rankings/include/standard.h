// What the published kernels' headers use of the C++ standard library, for a compiler that has none (hiprtc).
#pragma once
#include <hip/hip_runtime.h>
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long uint64_t;
typedef unsigned long uintptr_t;
#ifndef INFINITY
#define INFINITY __builtin_inff()
#endif
#define assert(condition) ((void)0)
namespace std {
using size_t = decltype(sizeof(0));
using nullptr_t = decltype(nullptr);
using ::uint64_t;
using ::uintptr_t;
template <class T> struct type_identity { using type = T; };
template <class T, T v> struct integral_constant {
    static constexpr T value = v;
    using value_type = T;
    constexpr operator T() const { return v; }
};
using true_type = integral_constant<bool, true>;
using false_type = integral_constant<bool, false>;
template <bool, class T = void> struct enable_if {};
template <class T> struct enable_if<true, T> { using type = T; };
template <bool b, class T = void> using enable_if_t = typename enable_if<b, T>::type;
template <bool, class T, class> struct conditional { using type = T; };
template <class T, class F> struct conditional<false, T, F> { using type = F; };
template <bool b, class T, class F> using conditional_t = typename conditional<b, T, F>::type;
template <class, class> struct is_same : false_type {};
template <class T> struct is_same<T, T> : true_type {};
template <class A, class B> inline constexpr bool is_same_v = is_same<A, B>::value;
template <class T> struct remove_reference { using type = T; };
template <class T> struct remove_reference<T &> { using type = T; };
template <class T> struct remove_reference<T &&> { using type = T; };
template <class T> using remove_reference_t = typename remove_reference<T>::type;
template <class T> struct remove_const { using type = T; };
template <class T> struct remove_const<const T> { using type = T; };
template <class T> using remove_const_t = typename remove_const<T>::type;
template <class From, class To> concept convertible_to = __is_convertible(From, To);
template <class A, class B> concept same_as = __is_same(A, B);
template <class T, T... i> struct integer_sequence {
    static constexpr size_t size() { return sizeof...(i); }
};
template <size_t... i> using index_sequence = integer_sequence<size_t, i...>;
template <class T, T n> using make_integer_sequence = __make_integer_seq<integer_sequence, T, n>;
template <size_t n> using make_index_sequence = make_integer_sequence<size_t, n>;
template <class To, class From> __attribute__((host)) __attribute__((device)) constexpr To bit_cast(const From &from) {
    return __builtin_bit_cast(To, from);
}
template <class T, size_t n> struct array {
    T items[n];
    constexpr T &operator[](size_t i) { return items[i]; }
    constexpr const T &operator[](size_t i) const { return items[i]; }
};
// On the host alone, where nothing is compiled: only names.
struct string {};
struct runtime_error {
    runtime_error(const char *);
};
struct stream {};
extern stream cerr, cout;
template <class T> stream &operator<<(stream &, const T &);
inline constexpr char endl = '\n';
} // namespace std

// The HIP runtime's names that host functions of the published files use. hiprtc compiles them only as far as their types.
typedef int hipError_t;
typedef struct ihipStream_t *hipStream_t;
typedef struct ihipEvent_t *hipEvent_t;
enum { hipSuccess, hipFuncAttributeMaxDynamicSharedMemorySize };
struct grid_extent {
    unsigned x, y, z;
    constexpr grid_extent(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
#define dim3 grid_extent
hipError_t hipFuncSetAttribute(const void *, int, int);
hipError_t hipDeviceSynchronize();
const char *hipGetErrorString(hipError_t);
extern "C" unsigned __hipPushCallConfiguration(dim3 grid, dim3 block, size_t shared = 0, hipStream_t stream = nullptr);
