// Made-up profiler windows for dev/data.mjs: every number here is invented.

const CATEGORIES = ['kernel', 'copy_h2d', 'copy_d2h', 'copy_d2d', 'collective', 'idle_input', 'idle_launch', 'idle_sync', 'idle_host', 'other'];
const NAMES = [
  ['sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64', 'dense/MatMul', 0.41, 96, 'yes'],
  ['sm80_xmma_fprop_implicit_gemm_f32f32_f32f32_f32_nhwckrsc_nchw', 'conv2d/Conv2D', 0.27, 48, 'no'],
  ['ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*, unsigned long)', 'AllReduce', 0.12, 4, 'unknown'],
  ['void Eigen::internal::EigenMetaKernel<float, int>', 'relu/Relu', 0.09, 310, 'no'],
  ['void tensorflow::functor::BiasNHWCKernel<float>', 'dense/BiasAdd', 0.07, 96, 'no'],
  ['Memset', '', 0.04, 12, 'unknown'],
];

/** Two windows of a run: one in its starved stretch, one after it. `parts` are a step's own times in ms. */
export function madeUpWindows({ gpus, starts, parts, firsts, start }) {
  return firsts.map((first, window) => {
    const stop = first + 6;
    const info = {
      window, first_step: first, stop_step: stop, start_ns: start + starts[first], end_ns: start + starts[stop],
      profile: `2026_11_21_14_0${window}_00_step_${first}`, profile_run: null, events: 21000, cost_s: 0.31,
    };
    const steps = [];
    const kernels = [];
    const byStep = [];
    const total = {};
    for (const gpu of gpus ? Array.from({ length: gpus }, (_, g) => g) : [-1]) {
      let busy = 0;
      for (let step = first; step < stop; step++) {
        const duration = starts[step + 1] - starts[step];
        const wait = parts.input_wait[step] * 1e6;
        const rest = duration - wait;
        const row = Object.fromEntries(CATEGORIES.map((name) => [`${name}_ns`, 0]));
        if (gpu >= 0)
          Object.assign(row, { idle_input_ns: wait, copy_h2d_ns: 0.05 * rest, collective_ns: 0.08 * rest, idle_launch_ns: 0.06 * rest, idle_sync_ns: 0.02 * rest, other_ns: 0.01 * rest });
        else Object.assign(row, { idle_input_ns: wait, idle_host_ns: rest });
        row.kernel_ns = duration - CATEGORIES.reduce((sum, name) => sum + row[`${name}_ns`], 0);
        for (const name of Object.keys(row)) row[name] = Math.round(row[name]);
        busy += row.kernel_ns;
        steps.push({ step, gpu, start_ns: start + starts[step], duration_ns: duration, ...row, kernel_busy_ns: row.kernel_ns, any_busy_ns: Math.round(row.kernel_ns * 1.05), kernels: 560, window, batches: 1 });
        NAMES.forEach(([, , share, count], name) => byStep.push([step, gpu, name, count, Math.round((gpu < 0 ? rest : row.kernel_ns) * share), Math.round((rest * share) / count) * 2]));
      }
      total[gpu] = Math.round(gpu < 0 ? 3e8 : busy);
      for (const [name, op, share, count, tensor] of NAMES) {
        const ns = Math.round(total[gpu] * share);
        kernels.push({
          gpu, name, op, count: 6 * count, total_ns: ns, min_ns: Math.round((ns / (6 * count)) * 0.8), max_ns: Math.round((ns / (6 * count)) * 1.6),
          occupancy_pct: tensor === 'unknown' ? null : 100 * share, registers: 128, blocks: 1056, threads_per_block: 256, tensor_core: tensor,
        });
      }
    }
    return { info, reply: { ...info, steps, kernels, kernels_left_out: 0, kernel_total_ns: total, step_kernels: { names: NAMES.map(([name]) => name), rows: byStep } } };
  });
}
