// Work that threads share out: each takes the next piece that nobody has.

#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

template <typename Task>
static void share_out(int64_t count, int64_t threads, Task task) {
  std::atomic<int64_t> next{0};
  auto work = [&] {
    for (int64_t i; (i = next++) < count;) task(i);
  };
  std::vector<std::thread> others;
  for (int64_t i = 1; i < std::min(threads, count); i++) others.emplace_back(work);
  work();
  for (auto& other : others) other.join();
}
