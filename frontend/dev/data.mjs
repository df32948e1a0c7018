// Made-up recordings for working on the tab without a server: every number here is invented.
// A scenario is {summary, recording, lanes: {laneId: {axis, seriesName: values}}}.

import { madeUpWindows } from './windows.mjs';

/** A small seeded generator (mulberry32), so that screenshots can be compared. */
export function random(seed) {
  let a = seed;
  return () => {
    a = (a + 0x6d2b79f5) | 0;
    let t = Math.imul(a ^ (a >>> 15), 1 | a);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}

/** What the server calls the evidence below, and its unit. */
const LABELS = {
  wait_pct: ['waiting for input, share of these steps\' time', '%'], wait_ms_per_step: ['waiting for input, per step', 'ms'],
  step_ms: ['step time here', 'ms'], steps: ['steps', ''], gpu_active_pct: ['GPU active meanwhile (avg)', '%'],
  step_here_without_its_wait_ms: ['step time here without its wait', 'ms'], unstarved_steps_elsewhere_ms: ['step time elsewhere, without a wait', 'ms'],
  promise_rests_on: ['speedup estimated from', ''], faster_up_to: ['possible speedup here, up to', '×'], slowest_stage: ['slowest stage', ''],
  stage_ms_per_batch: ['slowest stage, per batch', 'ms'], stage_parallelism: ['its threads', ''],
};

/** A finding with its words, as the server sends it. */
export function worded(item) {
  const text = (name, value) => `${value} ${LABELS[name]?.[1] ?? ''}`.trim();
  const rows = Object.entries(item.evidence).map(([name, value]) => {
    const limit = item.threshold?.[name];
    return { name, label: LABELS[name]?.[0] ?? name.replace(/_/g, ' '), value: text(name, value),
      rule: limit === undefined ? '' : `≥ ${text(name, limit)}`, bar: limit === undefined ? null : [value, limit] };
  });
  const { slowest_stage: stage, stage_ms_per_batch: ms, callback } = item.evidence;
  return { ...item, rows, culprit: stage ? `${stage} takes ${ms} ms a batch` : (callback ?? '') };
}

const SECOND = 1e9;
const MIB = 2 ** 20;

/** Three acts of 2,000 steps: healthy, starved by its input, with stalls; validation every 2,000. */
export function threeActs({ id = 'resnet50-b64/20261121-1402', run = 'resnet50-b64', steps = 6400, gpus = 2, seed = 7, status = 'ended', start = 1.7637336e18 } = {}) {
  const rand = random(seed);
  const noise = (mean, spread) => Math.max(0, mean * (1 + spread * (rand() + rand() + rand() - 1.5)));
  const slowFrom = Math.floor(steps * 0.19);
  const slowTo = Math.floor(steps * 0.75);
  const series = { input_wait: [], compile: [], step: [], gpu_wait: [], callbacks: [] };
  const starts = [];
  const phases = [{ kind: 'fit', name: 'fit', start: 0, end: 0, step: 0 }];
  let clock = 1.8 * SECOND;
  phases.push({ kind: 'input_setup', name: 'iterator', start: 0.2 * SECOND, end: 1.6 * SECOND, step: 0, account: 'input_wait' });
  const spans = [];
  const validations = [];
  for (let step = 0; step < steps; step++) {
    if (step > 0 && step % Math.floor(steps / 2) === 0) {
      const end = clock + 16 * SECOND;
      phases.push({ kind: 'validation', name: 'validation', start: clock, end, step, account: 'validation' });
      validations.push([step, clock, end]);
      clock = end;
      phases.push({ kind: 'checkpoint', name: 'ModelCheckpoint.on_epoch_end', start: clock, end: clock + 2.2 * SECOND, step, account: 'callbacks' });
      clock += 2.2 * SECOND;
    }
    const slow = step >= slowFrom && step < slowTo;
    starts.push(clock);
    const parts = {
      input_wait: slow ? noise(84, 0.12) : rand() < 0.004 ? 6 : noise(0.15, 1),
      compile: step === 0 ? 8200 : 0,
      step: noise(3.1, 0.2),
      gpu_wait: noise(15.2, 0.06),
      callbacks: step % 400 === 399 ? 240 : noise(0.3, 0.4),
    };
    let total = 0;
    for (const [name, value] of Object.entries(parts)) {
      series[name].push(value);
      total += value;
    }
    clock += total * 1e6;
  }
  const end = clock + 0.4 * SECOND;
  phases[0].end = end;
  const perEpoch = Math.floor(steps / 4);
  for (let e = 0; e < 4; e++)
    phases.push({ kind: 'epoch', name: `epoch ${e + 1}`, start: starts[e * perEpoch], end: starts[(e + 1) * perEpoch] ?? end, step: (e + 1) * perEpoch });
  const sampleTimes = [];
  for (let t = 0; t < end; t += 0.1 * SECOND) if (!(t > 0.55 * end && t < 0.565 * end)) sampleTimes.push(t);
  const inSlow = (t) => t >= starts[slowFrom] && t < (starts[slowTo] ?? end);
  const stalled = (t) => validations.some(([, a, b]) => t >= a && t < b);
  const lanes = { steps: { kind: 'step', series }, input_wait: { kind: 'step', series: { input_wait: series.input_wait } } };
  const descriptions = [
    { id: 'steps', group: 'training', title: 'Step time', unit: 'ms', kind: 'stack', max: null, note: 'What the training thread did in each step',
      series: [['step', 'train function'], ['gpu_wait', 'GPU wait'], ['compile', 'compile'], ['callbacks', 'callbacks'], ['input_wait', 'input wait']].map(([name, title]) => ({ name, title })) },
    { id: 'input_wait', group: 'training', title: 'Input wait', unit: 'ms', kind: 'band', max: null, note: null, series: [{ name: 'input_wait', title: 'input wait' }] },
  ];
  const throttled = [0.83 * end, 0.9 * end];
  for (let g = 0; g < gpus; g++) {
    const add = (name, title, unit, max, value) => {
      lanes[`gpu${g}:${name}`] = { kind: 'time', times: sampleTimes, series: { [name]: sampleTimes.map((t) => value(t)) } };
      descriptions.push({ id: `gpu${g}:${name}`, group: `gpu${g}`, title, unit, kind: 'band', max, note: null, series: [{ name, title }] });
    };
    add('utilization_pct', 'GPU active', '%', 100, (t) => (stalled(t) ? noise(6, 1) : inSlow(t) ? Math.min(100, noise(14, 1.6)) : Math.min(100, noise(96, 0.05))));
    add('memory_used_bytes', 'VRAM', 'bytes', 143771 * MIB, (t) => Math.min(t / (20 * SECOND), 1) * (33.8 + g * 0.2) * 1024 * MIB + 600 * MIB);
    add('power_mw', 'Power', 'mW', 700000, (t) => (inSlow(t) ? noise(180000, 0.1) : noise(560000, 0.05)));
    add('sm_clock_mhz', 'SM clock', 'MHz', 1980, (t) => (g === 1 && t > throttled[0] && t < throttled[1] ? noise(1290, 0.03) : 1980));
  }
  lanes['host:cpu_pct'] = { kind: 'time', times: sampleTimes, series: { cpu_pct: sampleTimes.map((t) => noise(inSlow(t) ? 7 : 22, 0.4)) } };
  descriptions.push({ id: 'host:cpu_pct', group: 'host', title: 'CPU', unit: '%', kind: 'band', max: 100, note: 'of 16 cores', series: [{ name: 'cpu_pct', title: 'CPU' }] });
  const sum = (values) => values.reduce((a, b) => a + b, 0) / 1e3;
  const time_s = {
    input_wait: sum(series.input_wait) + 1.4, step: sum(series.step) + sum(series.gpu_wait), compile: sum(series.compile),
    validation: validations.length * 16, callbacks: sum(series.callbacks) + 2.2 * validations.length, other: 0.9,
  };
  const wall = end / SECOND;
  const stepIndex = (t) => Math.max(0, starts.findIndex((s) => s >= t));
  const abs = (t) => start + t;
  const lost = sum(series.input_wait.slice(slowFrom, slowTo));
  spans.push({
    id: 'input_bound-0', cause: 'input_bound', title: 'Input-bound', start_step: slowFrom, end_step: slowTo,
    start_ns: abs(starts[slowFrom]), end_ns: abs(starts[slowTo]), lost_s: lost, severity: 0.81, confidence: 'measured',
    evidence: { wait_pct: 81.2, wait_ms_per_step: 84.1, step_ms: 103.4, steps: slowTo - slowFrom, gpu_active_pct: 14.2, step_here_without_its_wait_ms: 18.6, unstarved_steps_elsewhere_ms: 18.9, promise_rests_on: '2800 steps of this run that did not wait', faster_up_to: 5.56, slowest_stage: 'map(decode_jpeg)', stage_ms_per_batch: 81.4, stage_parallelism: 1 },
    threshold: { wait_pct: 5 },
    advice: { text: 'One thread decodes 64 images in 81 ms while 15 cores idle. In parallel the stage needs about 6 ms, less than the 18 ms the GPU needs for a step.',
      code: 'ds = ds.map(decode_jpeg,\n            num_parallel_calls=tf.data.AUTOTUNE)\nds = ds.batch(64).prefetch(tf.data.AUTOTUNE)' },
    gpus: [0, 1].slice(0, gpus), ranks: [0],
  });
  validations.forEach(([step, a, b], i) => spans.push({
    id: `host_stall-${i}`, cause: 'host_stall', title: 'Validation stalls training', start_step: step, end_step: step + 1, start_ns: abs(a), end_ns: abs(b), lost_s: 16, severity: 1,
    confidence: 'measured', evidence: { stall_s: 16, share_of_run: 16 / wall }, threshold: { min_stall_s: 1 },
    advice: { text: 'Validate less often, or on fewer steps.', code: 'model.fit(..., validation_freq=2)' }, gpus: [0], ranks: [0],
  }));
  if (gpus > 1) spans.push({
    id: 'throttled-0', cause: 'throttled', title: 'Throttled (thermal)', start_step: stepIndex(throttled[0]), end_step: stepIndex(throttled[1]), start_ns: abs(throttled[0]),
    end_ns: abs(throttled[1]), lost_s: 6.2, severity: 0.2, confidence: 'estimated', evidence: { sm_clock_mhz: 1290, temperature_c: 89 }, threshold: { min_temperature_c: 85 },
    advice: { text: 'Improve the cooling of gpu1, or lower its power limit so that it holds one clock.', code: '' }, gpus: [1], ranks: [0],
  });
  const findings = [{
    id: 'no_tensor_cores', cause: 'no_tensor_cores', title: '32-bit math', lost_s: null, severity: 0.1, confidence: 'estimated', evidence: { kernel_share: 0.68 },
    threshold: { min_kernel_share: 0.3 }, advice: { text: '68 % of kernel time could use tensor cores.', code: "keras.mixed_precision.set_global_policy('mixed_bfloat16')" }, gpus: [0], ranks: [0],
  }];
  const gpuTime = () => ({ basis: 'windows', kernel: time_s.step * 0.93, copy_h2d: 9, idle_input: time_s.input_wait, idle_launch: 11, idle_host: time_s.validation + time_s.callbacks, other: 4 });
  const report = {
    run, session: 's1', job: 'abc', fit_index: 0, host: 'node-a', rank: 0, status, wall_s: wall, steps,
    framework: { name: 'tensorflow', version: '2.21.0', keras: '3.15.1', backend: 'tensorflow' },
    step_ms: { mean: 80, p50: 103.4, p95: 116.2 }, time_s,
    verdict: `The input pipeline starves the GPU: ${Math.floor(lost / 60)} m ${Math.round(lost % 60)} s of ${Math.floor(wall / 60)} m ${Math.round(wall % 60)} s. Fixed, this run is up to 2.9× faster.`,
    gpu_time_est: Object.fromEntries(Array.from({ length: gpus }, (_, g) => [g, gpuTime()])),
    gpus: Array.from({ length: gpus }, (_, g) => ({
      index: g, nvml_index: g, uuid: `GPU-${g}a2b3c4d-5e6f`, name: 'NVIDIA H200', used_by_framework: true,
      utilization_pct: { mean: 42, p5: 3, p50: 17, p95: 98 }, memory_used_bytes: { max: 34.4 * 1024 * MIB }, memory_total_bytes: 143771 * MIB,
    })),
    traced: { steps: 10, per_gpu: {} },
    unavailable: gpus ? [{ source: 'gpm', reason: 'GPM needs a Hopper GPU and R520 or newer', cure: null }] : [{ source: 'nvml', reason: 'no NVIDIA driver was found (libnvidia-ml.so.1)', cure: 'Install the driver, or ignore this on a machine without a GPU.' }],
    overhead: { callback_us_per_step: 11.3, sampler_cpu_pct: 0.3, windows_s: 1.2, recorder_cpu_pct: 0.2 }, findings: gpus ? findings.map(worded) : [], spans: spans.map(worded),
  };
  const windows = madeUpWindows({ gpus, starts, parts: series, firsts: [slowFrom + 200, slowTo + 300], start });
  for (const { info } of windows) phases.push({ kind: 'profiler_window', name: `window ${info.window}`, start: info.start_ns - start, end: info.end_ns - start, step: info.first_step });
  return {
    starts, end, windows: windows.map(({ reply }) => reply),
    summary: { id, run, session: 's1', fit_index: 0, host: 'node-a', rank: 0, status, start_ns: start, end_ns: start + end, steps, label: null, verdict: report.verdict, revision: 1 },
    recording: {
      id, revision: 1, report, extent: { start_ns: start, end_ns: start + end, first_step: 0, last_step: steps - 1 }, lanes: descriptions,
      phases: phases.map((p) => ({ kind: p.kind, name: p.name, start_ns: start + p.start, end_ns: start + p.end, step: p.step, account: p.account ?? '', self_ns: p.end - p.start, count: 1 })),
      labels: LABELS, windows: windows.map(({ info }) => info), problems: [],
    },
    lanes,
  };
}

/** Names as an attacker or an accident would choose them. */
export function hostile(scenario) {
  const nasty = [
    '<img src=x onerror="window.pwned=1">', '"><script>window.pwned=1</script>', '\u202Egnp.exe\u202C right-to-left', 'nul\u0000byte\u0007bell', 'A'.repeat(10000),
    '{{constructor.constructor("window.pwned=1")()}}',
  ];
  const copy = structuredClone(scenario);
  const { recording, summary } = copy;
  recording.report.run = summary.run = nasty[0];
  summary.label = nasty[1];
  recording.report.host = nasty[2];
  recording.report.verdict = nasty[1] + nasty[4];
  recording.report.spans.forEach((span, i) => {
    span.title = nasty[i % nasty.length];
    span.cause = i === 1 ? '__proto__' : span.cause;
    Object.assign(span, worded({ ...span, evidence: { [nasty[0]]: nasty[1], slowest_stage: nasty[4], stage_ms_per_batch: nasty[2] } }));
    span.advice = { text: nasty[4], code: nasty[1] + '\n' + nasty[4] };
  });
  recording.report.gpus.forEach((gpu, i) => { gpu.name = nasty[(i + 4) % nasty.length]; gpu.uuid = nasty[3]; });
  recording.report.unavailable = nasty.map((reason) => ({ source: reason, reason, cure: reason }));
  recording.lanes.forEach((lane, i) => { if (i > 2) lane.title = nasty[i % nasty.length]; lane.note = nasty[1]; });
  recording.phases.forEach((phase, i) => { phase.name = nasty[i % nasty.length]; });
  recording.problems = nasty.map((message) => ({ path: message, message }));
  return copy;
}
