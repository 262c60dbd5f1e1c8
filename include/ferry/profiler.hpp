#pragma once

// Profiles across workers: docs/profiling.md. Metrics of calls: docs/metrics.md.

#include <ferry/profiler/group_recording.hpp>
#include <ferry/profiler/html_page.hpp>
#include <ferry/profiler/latency_histogram.hpp>
#include <ferry/profiler/metrics.hpp>
#include <ferry/profiler/metrics_server.hpp>
#include <ferry/profiler/process_scope.hpp>
#include <ferry/profiler/profile.hpp>
#include <ferry/profiler/report.hpp>
#include <ferry/profiler/server_scope.hpp>
#include <ferry/profiler/session.hpp>
#include <ferry/profiler/trace_parent.hpp>
