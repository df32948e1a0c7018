/* What a GPU shows now: each is one curve of the scenario. */
#include "abi.h"
#include "standin.h"
#include <string.h>

/* int f(device, unsigned *out) answering the curve NAME. */
#define GAUGE(symbol, name)                              \
    EXPORT int symbol(device gpu, unsigned *out) {       \
        ENTER(gpu);                                      \
        double value;                                    \
        if (!gpu_value(gpu, name, &value)) return NOT_SUPPORTED; \
        *out = (unsigned)value;                          \
        return OK;                                       \
    }

GAUGE(nvmlDeviceGetPowerUsage, "power_mw")
GAUGE(nvmlDeviceGetEnforcedPowerLimit, "power_limit_mw")
GAUGE(nvmlDeviceGetPowerManagementLimit, "power_limit_mw")
GAUGE(nvmlDeviceGetPowerManagementDefaultLimit, "power_default_mw")
GAUGE(nvmlDeviceGetPowerManagementMode, "power_management")
GAUGE(nvmlDeviceGetPersistenceMode, "persistence")
GAUGE(nvmlDeviceGetComputeMode, "compute_mode")
GAUGE(nvmlDeviceGetPerformanceState, "performance_state")
GAUGE(nvmlDeviceGetPowerState, "performance_state")
GAUGE(nvmlDeviceGetFanSpeed, "fan")
GAUGE(nvmlDeviceGetMinorNumber, "minor")
GAUGE(nvmlDeviceGetNumGpuCores, "cores")
GAUGE(nvmlDeviceGetArchitecture, "architecture")
GAUGE(nvmlDeviceGetDisplayMode, "display")
GAUGE(nvmlDeviceGetDisplayActive, "display")
GAUGE(nvmlDeviceGetMemoryBusWidth, "memory_bus_width")
GAUGE(nvmlDeviceGetCurrPcieLinkGeneration, "pcie_generation")
GAUGE(nvmlDeviceGetMaxPcieLinkGeneration, "pcie_generation_max")
GAUGE(nvmlDeviceGetGpuMaxPcieLinkGeneration, "pcie_generation_max")
GAUGE(nvmlDeviceGetCurrPcieLinkWidth, "pcie_width")
GAUGE(nvmlDeviceGetMaxPcieLinkWidth, "pcie_width_max")
GAUGE(nvmlDeviceGetPcieReplayCounter, "pcie_replays")

/* int f(device, which, unsigned *out) answering the curve NAME:<which>. */
static int numbered(device gpu, const char *name, unsigned which, double *value) {
    char full[40];
    size_t length = strlen(name);
    memcpy(full, name, length);
    full[length] = ':';
    full[length + 1] = (char)('0' + which % 10);
    full[length + 2] = 0;
    return gpu_value(gpu, full, value);
}

#define NUMBERED(symbol, name)                           \
    EXPORT int symbol(device gpu, unsigned which, unsigned *out) { \
        ENTER(gpu);                                      \
        double value;                                    \
        if (!numbered(gpu, name, which, &value)) return NOT_SUPPORTED; \
        *out = (unsigned)value;                          \
        return OK;                                       \
    }

NUMBERED(nvmlDeviceGetClockInfo, "clock")
NUMBERED(nvmlDeviceGetMaxClockInfo, "clock_max")
NUMBERED(nvmlDeviceGetTemperature, "temperature")
NUMBERED(nvmlDeviceGetTemperatureThreshold, "temperature_threshold")
NUMBERED(nvmlDeviceGetPcieThroughput, "pcie_throughput")
NUMBERED(nvmlDeviceGetFanSpeed_v2, "fan")

EXPORT int nvmlDeviceGetTemperatureV(device gpu, struct temperature *out) {
    ENTER(gpu);
    double value;
    if (out->version != (sizeof *out | 1u << 24)) return VERSION_MISMATCH;
    if (!numbered(gpu, "temperature", out->sensor, &value)) return NOT_SUPPORTED;
    out->value = (int)value;
    return OK;
}

EXPORT int nvmlDeviceGetUtilizationRates(device gpu, struct utilization *out) {
    ENTER(gpu);
    double busy, memory = 0;
    if (!gpu_value(gpu, "utilization", &busy)) return NOT_SUPPORTED;
    gpu_value(gpu, "memory_utilization", &memory);
    out->gpu = (unsigned)busy, out->memory = (unsigned)memory;
    return OK;
}

#define PERIODIC(symbol, name)                           \
    EXPORT int symbol(device gpu, unsigned *out, unsigned *period_us) { \
        ENTER(gpu);                                      \
        double value;                                    \
        if (!gpu_value(gpu, name, &value)) return NOT_SUPPORTED; \
        *out = (unsigned)value, *period_us = 166666;     \
        return OK;                                       \
    }
PERIODIC(nvmlDeviceGetEncoderUtilization, "encoder")
PERIODIC(nvmlDeviceGetDecoderUtilization, "decoder")

static int memory_now(device gpu, struct memory_v2 *out) {
    double total, used, reserved = 0;
    if (!gpu_value(gpu, "memory_total", &total) || !gpu_value(gpu, "memory_used", &used))
        return NOT_SUPPORTED;
    gpu_value(gpu, "memory_reserved", &reserved);
    out->total = (uint64_t)total, out->used = (uint64_t)used, out->reserved = (uint64_t)reserved;
    out->free = out->total - out->reserved - out->used;
    return OK;
}

EXPORT int nvmlDeviceGetMemoryInfo(device gpu, struct memory *out) {
    ENTER(gpu);
    struct memory_v2 now;
    int code = memory_now(gpu, &now);
    if (code) return code;
    out->total = now.total, out->free = now.free, out->used = now.used + now.reserved;
    return OK;
}
EXPORT int nvmlDeviceGetMemoryInfo_v2(device gpu, struct memory_v2 *out) {
    ENTER(gpu);
    if (out->version != (sizeof *out | 2u << 24)) return VERSION_MISMATCH;
    return memory_now(gpu, out);
}

EXPORT int nvmlDeviceGetBAR1MemoryInfo(device gpu, struct bar1 *out) {
    ENTER(gpu);
    double total;
    if (!gpu_value(gpu, "bar1_total", &total)) return NOT_SUPPORTED;
    out->total = (uint64_t)total, out->used = 1 << 20, out->free = out->total - out->used;
    return OK;
}

static int reasons(device gpu, uint64_t *out) {
    double value;
    if (!gpu_value(gpu, "event_reasons", &value)) return NOT_SUPPORTED;
    *out = (uint64_t)value;
    return OK;
}
EXPORT int nvmlDeviceGetCurrentClocksEventReasons(device gpu, uint64_t *out) {
    ENTER(gpu);
    return reasons(gpu, out);
}
EXPORT int nvmlDeviceGetCurrentClocksThrottleReasons(device gpu, uint64_t *out) {
    ENTER(gpu);
    return reasons(gpu, out);
}

EXPORT int nvmlDeviceGetTotalEnergyConsumption(device gpu, uint64_t *out) {
    ENTER(gpu);
    double value;
    if (!gpu_value(gpu, "field:83:0", &value)) return NOT_SUPPORTED;
    *out = (uint64_t)value;
    return OK;
}
EXPORT int nvmlDeviceGetCudaComputeCapability(device gpu, int *major, int *minor) {
    ENTER(gpu);
    double value; /* 90 = 9.0 */
    if (!gpu_value(gpu, "compute_capability", &value)) return NOT_SUPPORTED;
    *major = (int)value / 10, *minor = (int)value % 10;
    return OK;
}
EXPORT int nvmlDeviceGetPowerManagementLimitConstraints(device gpu, unsigned *low, unsigned *high) {
    ENTER(gpu);
    double value;
    if (!gpu_value(gpu, "power_max_mw", &value)) return NOT_SUPPORTED;
    *low = (unsigned)(value / 3), *high = (unsigned)value;
    return OK;
}
EXPORT int nvmlDeviceGetEccMode(device gpu, unsigned *current, unsigned *pending) {
    ENTER(gpu);
    double value;
    if (!gpu_value(gpu, "ecc_mode", &value)) return NOT_SUPPORTED;
    *current = *pending = (unsigned)value;
    return OK;
}
/* kind: 0 corrected, 1 uncorrected; counter: 0 volatile, 1 aggregate */
EXPORT int nvmlDeviceGetTotalEccErrors(device gpu, unsigned kind, unsigned counter, uint64_t *out) {
    ENTER(gpu);
    double value;
    if (!numbered(gpu, counter ? "ecc_aggregate" : "ecc_volatile", kind, &value))
        return NOT_SUPPORTED;
    *out = (uint64_t)value;
    return OK;
}
EXPORT int nvmlDeviceGetVirtualizationMode(device gpu, unsigned *out) {
    ENTER(gpu);
    double value = 0;
    gpu_value(gpu, "virtualization", &value);
    *out = (unsigned)value;
    return OK;
}
EXPORT int nvmlDeviceGetNvLinkState(device gpu, unsigned link, unsigned *out) {
    ENTER(gpu);
    double count;
    if (!gpu_value(gpu, "nvlinks", &count)) return NOT_SUPPORTED;
    *out = link < (unsigned)count;
    return OK;
}
