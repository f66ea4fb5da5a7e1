// What time it is, in seconds.
#pragma once

#include <time.h>

inline double clock_seconds(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

inline double wall() { return clock_seconds(CLOCK_REALTIME); }
inline double monotonic() { return clock_seconds(CLOCK_MONOTONIC); }
