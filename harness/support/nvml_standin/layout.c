/* How this library lays out what it shares with its callers, for a test to compare. */
#include "abi.h"
#include "standin.h"
#include <stddef.h>

#define S(binding, own) {binding, "", sizeof(own), 0}
#define F(binding, field, own, member) {binding, field, sizeof(((own *)0)->member), offsetof(own, member)}

static const struct layout { const char *type, *field; long size, offset; } layouts[] = {
    S("c_nvmlUtilization_t", struct utilization),
    F("c_nvmlUtilization_t", "memory", struct utilization, memory),
    S("c_nvmlMemory_t", struct memory),
    F("c_nvmlMemory_t", "used", struct memory, used),
    S("c_nvmlMemory_v2_t", struct memory_v2),
    F("c_nvmlMemory_v2_t", "total", struct memory_v2, total),
    F("c_nvmlMemory_v2_t", "reserved", struct memory_v2, reserved),
    F("c_nvmlMemory_v2_t", "free", struct memory_v2, free),
    F("c_nvmlMemory_v2_t", "used", struct memory_v2, used),
    S("c_nvmlBAR1Memory_t", struct bar1),
    F("c_nvmlBAR1Memory_t", "bar1Used", struct bar1, used),
    S("c_nvmlTemperature_v1_t", struct temperature),
    F("c_nvmlTemperature_v1_t", "temperature", struct temperature, value),
    S("c_nvmlValue_t", union value),
    S("c_nvmlSample_t", struct sample),
    F("c_nvmlSample_t", "sampleValue", struct sample, value),
    S("c_nvmlFieldValue_t", struct field_value),
    F("c_nvmlFieldValue_t", "timestamp", struct field_value, time_us),
    F("c_nvmlFieldValue_t", "latencyUsec", struct field_value, latency_us),
    F("c_nvmlFieldValue_t", "valueType", struct field_value, type),
    F("c_nvmlFieldValue_t", "nvmlReturn", struct field_value, code),
    F("c_nvmlFieldValue_t", "value", struct field_value, value),
    S("nvmlPciInfo_t", struct pci_info),
    F("nvmlPciInfo_t", "domain", struct pci_info, domain),
    F("nvmlPciInfo_t", "busId", struct pci_info, id),
    S("c_nvmlProcessInfo_v3_t", struct process_info),
    F("c_nvmlProcessInfo_v3_t", "usedGpuMemory", struct process_info, bytes),
    F("c_nvmlProcessInfo_v3_t", "computeInstanceId", struct process_info, ci),
    S("c_nvmlProcessUtilizationSample_t", struct process_utilization),
    F("c_nvmlProcessUtilizationSample_t", "timeStamp", struct process_utilization, time_us),
    F("c_nvmlProcessUtilizationSample_t", "decUtil", struct process_utilization, dec),
    S("c_nvmlEventData_t", struct event),
    F("c_nvmlEventData_t", "eventData", struct event, data),
    F("c_nvmlEventData_t", "computeInstanceId", struct event, ci),
    S("c_nvmlGpmSupport_t", struct gpm_support),
    S("c_nvmlGpmMetric_t", struct gpm_metric),
    F("c_nvmlGpmMetric_t", "nvmlReturn", struct gpm_metric, code),
    F("c_nvmlGpmMetric_t", "value", struct gpm_metric, value),
    F("c_nvmlGpmMetricsGet_t", "sample1", struct gpm_get, first),
    F("c_nvmlGpmMetricsGet_t", "sample2", struct gpm_get, second),
    {"c_nvmlGpmMetricsGet_t", "metrics", -1, offsetof(struct gpm_get, metric)},
    {0, 0, 0, 0},
};

/* Row `i`, or 0 after the last; an empty field is the whole structure, size -1 = not to compare. */
EXPORT const struct layout *standin_layout(int i) { return layouts[i].type ? &layouts[i] : 0; }
