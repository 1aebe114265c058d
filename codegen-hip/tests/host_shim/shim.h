// Generated kernels as host C++, for tests only: a workgroup's threads are fibers that take turns at barriers and shuffles.
//
// Workgroups run one after another, so LDS is a static variable. What is out of a buffer's bounds holds 0xff, which is NaN.
#pragma once
#define GRAPHC_HOST 1

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include <vector>

#define __global__
#define __device__
#define __launch_bounds__(...)
#define __shared__ static

struct Index3 { unsigned x, y, z; };

namespace host {

struct Fiber {
    ucontext_t context;
    unsigned thread;
    bool done;
    // How many barriers (of the workgroup, of a group of lanes) it has passed.
    unsigned long block_round;
    unsigned long lane_rounds;
    std::vector<char> stack;
};

inline ucontext_t scheduler;
inline std::vector<Fiber> fibers;
inline Fiber* running;
inline std::vector<uint32_t> slots;
inline unsigned threads;
inline void (*body)(void**, const long*);
inline void** buffers;
inline const long* sizes;

inline void pause() { swapcontext(&running->context, &scheduler); }

// Waits until all threads of [first, first + count) have passed as many barriers of this kind; ended ones count as passed.
inline void meet(unsigned long Fiber::*round, unsigned first, unsigned count) {
    const unsigned long mine = ++(running->*round);
    for (;;) {
        bool all = true;
        for (unsigned t = first; t < first + count; ++t) all &= fibers[t].done || fibers[t].*round >= mine;
        if (all) return;
        pause();
    }
}

inline void enter() {
    body(buffers, sizes);
    running->done = true;
    for (;;) pause();
}

}  // namespace host

struct ThreadIndex {
    struct X { operator unsigned() const { return host::running->thread; } } x;
};
inline ThreadIndex threadIdx;
inline Index3 blockIdx, gridDim, blockDim;

inline void __syncthreads() { host::meet(&host::Fiber::block_round, 0, host::threads); }

// Of the widest wave there is: two narrow ones that meet wait for no more than they have to.
inline void __syncwarp() {
    const unsigned first = host::running->thread / 64 * 64;
    host::meet(&host::Fiber::lane_rounds, first, host::threads - first < 64 ? host::threads - first : 64);
}

// Threads take turns on one thread of the host: what one stores the others see.
inline void __threadfence() {}
inline int atomicAdd(int* word, int more) {
    const int before = *word;
    *word = before + more;
    return before;
}

namespace graphc {
template <int LANES>
inline unsigned shuffle_xor_word(unsigned value, int mask) {
    const unsigned self = host::running->thread, first = self / LANES * LANES;
    host::slots[self] = value;
    host::meet(&host::Fiber::lane_rounds, first, LANES);
    const unsigned got = host::slots[self ^ (unsigned)mask];
    host::meet(&host::Fiber::lane_rounds, first, LANES);
    return got;
}
inline unsigned compare_and_swap(unsigned* address, unsigned expected, unsigned next) {
    const unsigned seen = *address;
    if (seen == expected) *address = next;
    return seen;
}
inline unsigned long compare_and_swap(unsigned long* address, unsigned long expected, unsigned long next) {
    const unsigned long seen = *address;
    if (seen == expected) *address = next;
    return seen;
}
}  // namespace graphc

namespace host {

inline void launch(void (*kernel)(void**, const long*), unsigned grid_x, unsigned grid_z, unsigned block, void** args, const long* sizes_) {
    body = kernel, buffers = args, sizes = sizes_, threads = block;
    gridDim = {grid_x, 1, grid_z}, blockDim = {block, 1, 1};
    fibers.resize(block), slots.assign(block, 0);
    for (unsigned z = 0; z < grid_z; ++z) {
        for (unsigned x = 0; x < grid_x; ++x) {
            blockIdx = {x, 0, z};
            for (unsigned t = 0; t < block; ++t) {
                Fiber& f = fibers[t];
                f.thread = t, f.done = false, f.block_round = 0, f.lane_rounds = 0;
                f.stack.resize(96 << 10);
                getcontext(&f.context);
                f.context.uc_stack.ss_sp = f.stack.data();
                f.context.uc_stack.ss_size = f.stack.size();
                f.context.uc_link = nullptr;
                makecontext(&f.context, enter, 0);
            }
            for (bool left = true; left;) {
                left = false;
                for (unsigned t = 0; t < block; ++t) {
                    if (fibers[t].done) continue;
                    running = &fibers[t];
                    swapcontext(&scheduler, &fibers[t].context);
                    left |= !fibers[t].done;
                }
            }
        }
    }
}

constexpr size_t GUARD = 256;

// The jobs of a file, one after another, their buffers written back to the same layout:
// u64 kernel, grid x, grid z, block, buffers, sizes; then each size; then for each buffer its length and bytes.
inline int run(int argc, char** argv, void (*const* kernels)(void**, const long*)) {
    if (argc != 3) return 2;
    FILE *in = fopen(argv[1], "rb"), *out = fopen(argv[2], "wb");
    if (!in || !out) return 3;
    unsigned long head[6];
    while (fread(head, 8, 6, in) == 6) {
        std::vector<long> sizes(head[5] + 1);
        if (fread(sizes.data(), 8, head[5], in) != head[5]) return 4;
        std::vector<std::vector<unsigned char>> memory(head[4]);
        std::vector<void*> args;
        std::vector<unsigned long> lengths;
        for (auto& m : memory) {
            unsigned long length;
            if (fread(&length, 8, 1, in) != 1) return 5;
            m.assign(length + 3 * GUARD, 0xff);
            unsigned char* at = (unsigned char*)(((uintptr_t)m.data() + 2 * GUARD - 1) & ~(uintptr_t)(GUARD - 1));
            if (fread(at, 1, length, in) != length) return 6;
            args.push_back(at), lengths.push_back(length);
        }
        launch(kernels[head[0]], (unsigned)head[1], (unsigned)head[2], (unsigned)head[3], args.data(), sizes.data());
        for (size_t i = 0; i < memory.size(); ++i) {
            const unsigned char* at = (const unsigned char*)args[i];
            // A write before or behind the buffer.
            for (const unsigned char* p = memory[i].data(); p < memory[i].data() + memory[i].size(); ++p) {
                if ((p < at || p >= at + lengths[i]) && *p != 0xff) {
                    fprintf(stderr, "kernel %lu wrote out of bounds of buffer %zu at %ld\n", head[0], i, (long)(p - at));
                    return 7;
                }
            }
            fwrite(at, 1, lengths[i], out);
        }
    }
    fclose(out);
    return 0;
}

}  // namespace host
