// Threads kept alive between calls, none of which is ever waited for unless it holds a piece of work.
//
// The caller cuts each phase into pieces; whoever is free takes the next one, and the phase ends when all are done. A thread that
// the system has put aside costs nothing but its help. Between calls the threads spin briefly, then sleep.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace hs {

inline void breathe() {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

class Pool {
    using Body = void (*)(void*, int, int);
    static constexpr int PIECE_BITS = 20;  // of the cursor: the next piece; above them the phase's number

    const int count_;
    std::vector<std::thread> workers_;
    alignas(64) std::atomic<uint64_t> cursor_{0};
    alignas(64) std::atomic<int> pieces_{0};
    std::atomic<Body> body_{nullptr};
    std::atomic<void*> arg_{nullptr};
    alignas(64) std::atomic<int> done_{0};
    alignas(64) std::atomic<uint32_t> calls_{0};
    std::atomic<bool> open_{false}, stop_{false};
    std::atomic<int> asleep_{0};

    // Takes and does one piece; false when there is none. A cursor that is still the same when it is moved names the phase that
    // body, argument and piece count belong to: they change only before a new phase's cursor is published.
    bool help(int thread) {
        uint64_t seen = cursor_.load(std::memory_order_acquire);
        for (;;) {
            const int piece = (int)(seen & ((1u << PIECE_BITS) - 1));
            if (piece >= pieces_.load(std::memory_order_relaxed)) return false;
            const Body body = body_.load(std::memory_order_relaxed);
            void* const arg = arg_.load(std::memory_order_relaxed);
            std::atomic_thread_fence(std::memory_order_acquire);
            if (cursor_.compare_exchange_weak(seen, seen + 1, std::memory_order_acq_rel, std::memory_order_acquire)) {
                body(arg, piece, thread);
                done_.fetch_add(1, std::memory_order_release);
                return true;
            }
        }
    }

    void work(int thread) {
        using Clock = std::chrono::steady_clock;
        Clock::time_point since;
        for (int idle = 0; !stop_.load(std::memory_order_relaxed);) {
            if (help(thread)) {
                idle = 0;
            } else if (++idle < 2000) {
                breathe();
            } else {
                // Others may need this core. The next call of a decoding loop comes within tens of microseconds; then sleep.
                std::this_thread::yield();
                if (idle == 2000 || open_.load()) {
                    since = Clock::now();
                    idle = 2000;
                } else if (Clock::now() - since > std::chrono::microseconds(100)) {
                    const uint32_t calls = calls_.load();
                    asleep_.fetch_add(1);
                    if (!open_.load() && !stop_.load()) calls_.wait(calls);
                    asleep_.fetch_sub(1);
                    idle = 0;
                }
            }
        }
    }

   public:
    explicit Pool(int threads) : count_(threads < 1 ? 1 : threads) {
        for (int t = 1; t < count_; t++) workers_.emplace_back([this, t] { work(t); });
    }
    ~Pool() {
        stop_ = true;
        calls_.fetch_add(1);
        calls_.notify_all();
        for (auto& w : workers_) w.join();
    }
    int count() const { return count_; }
    uint64_t phase() const { return cursor_.load(std::memory_order_relaxed) >> PIECE_BITS; }

    // Phases run between begin and end; the workers are awake meanwhile.
    void begin() {
        if (count_ == 1) return;
        open_ = true;
        calls_.fetch_add(1);
        if (asleep_.load()) calls_.notify_all();
    }
    void end() { open_ = false; }

    // fn(piece, thread) for every piece below `pieces`, spread over whoever is free; returns when all are done.
    template <class Fn>
    void split(int64_t pieces, Fn fn) {
        const uint64_t next = ((cursor_.load(std::memory_order_relaxed) >> PIECE_BITS) + 1) << PIECE_BITS;
        if (count_ == 1 || pieces <= 1) {
            cursor_.store(next | ((1u << PIECE_BITS) - 1), std::memory_order_release);
            for (int64_t i = 0; i < pieces; i++) fn((int)i, 0);
            return;
        }
        done_.store(0, std::memory_order_relaxed);
        // No piece can be taken while the three below change: the old phase's cursor stands past its last piece.
        cursor_.store(next | ((1u << PIECE_BITS) - 1), std::memory_order_release);
        std::atomic_thread_fence(std::memory_order_release);
        pieces_.store((int)pieces, std::memory_order_relaxed);
        arg_.store(&fn, std::memory_order_relaxed);
        body_.store([](void* arg, int piece, int thread) { (*(Fn*)arg)(piece, thread); }, std::memory_order_relaxed);
        cursor_.store(next, std::memory_order_release);
        while (help(0)) {
        }
        for (int n = 0; done_.load(std::memory_order_acquire) < pieces; n++) {
            if (n < 2000)
                breathe();
            else
                std::this_thread::yield();
        }
    }
};

}  // namespace hs
