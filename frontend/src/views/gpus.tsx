/** Each GPU: how busy it was and how full, or why nothing is known. */
import { useState } from 'preact/hooks';
import type { GpuReport as Gpu, WordedReport, Unavailable } from '../api/types.ts';
import { namedGpus } from '../state/findings.ts';
import { between, energy, bytes, count, percent, short } from '../math/format.ts';
import { median, split } from '../math/odd.ts';
import { clean, ranges } from '../math/text.ts';
import { gpuActive } from '../words/accounts.ts';
import { Prose, Remedy } from './prose.tsx';

/** So many alike make one row. */
const FOLDED_FROM = 3;

/** Share of the traced steps in which a kernel ran, in percent: where no sampler looked, a trace may have. */
function tracedKernels(report: WordedReport, gpu: Gpu): number | null {
  if (typeof gpu.utilization_pct?.mean === 'number') return null;
  const { kernel_ms: kernel, step_ms: step } = report.traced.per_gpu?.[String(gpu.index)] ?? {};
  return typeof kernel === 'number' && typeof step === 'number' && step > 0 ? (100 * kernel) / step : null;
}

/** "0 %", or what for: "thermal 6 %, power 2 %"; empty where it was not measured. */
function throttledText(gpu: Gpu): string {
  const parts = Object.entries(gpu.throttled_pct ?? {}).filter((part): part is [string, number] => typeof part[1] === 'number');
  if (parts.length === 0) return '';
  const some = parts.filter(([, pct]) => pct >= 0.05);
  return some.length === 0 ? '0 %' : some.map(([why, pct]) => `${clean(why, 12)} ${percent(pct)}`).join(', ');
}

/** "11.5 of 80 GiB"; "" where it was not sampled. */
function vram({ memory_used_bytes: used, memory_total_bytes: total }: Gpu): string {
  const peak = used?.max;
  if (typeof peak !== 'number') return '';
  if (typeof total !== 'number') return bytes(peak);
  const [own, whole] = [bytes(peak, total), bytes(total)];
  return `${own.replace(whole.slice(whole.indexOf(' ')), '')} of ${whole}`;
}

/** A row for each GPU that differs, one for all that are alike. */
export function Gpus({ report }: { report: WordedReport }) {
  const [open, setOpen] = useState(false);
  const { gpus } = report;
  if (gpus.length === 0) return <NoGpu report={report} />;
  const active = (gpu: Gpu): number | null => gpu.utilization_pct?.mean ?? tracedKernels(report, gpu);
  const { odd, alike } = split(gpus, active, namedGpus(report));
  const folds = alike.length >= FOLDED_FROM;
  return (
    <div class="gpu-table" tabIndex={0} role="region" aria-label="GPUs">
      <table>
        <tbody>
          {(folds ? odd : gpus).map((gpu) => (
            <GpuRow key={gpu.index} gpu={gpu} report={report} />
          ))}
          {folds && (
            <tr class="alike">
              <th scope="row">
                <button type="button" class="linklike" aria-expanded={open} title={`gpu${ranges(alike.map(({ index }) => index))}`} onClick={() => setOpen(!open)}>
                  {open ? '▾' : '▸'} {odd.length > 0 ? `${count(alike.length)} alike` : `all ${count(alike.length)} alike`}
                </button>
              </th>
              <GpuFacts gpu={typical(alike)} report={report} />
            </tr>
          )}
          {folds && open && alike.map((gpu) => <GpuRow key={gpu.index} gpu={gpu} report={report} />)}
        </tbody>
      </table>
    </div>
  );
}

interface Props {
  gpu: Gpu;
  report: WordedReport;
}

/** A GPU and its facts, as a row of the table. */
function GpuRow({ gpu, report }: Props) {
  return (
    <tr>
      <th scope="row" title={clean(`${gpu.name ?? ''} ${gpu.uuid ?? ''}`, 120)}>
        gpu{gpu.index}
        {gpu.used_by_framework === false && <span class="warn"> unused</span>}
      </th>
      <GpuFacts gpu={gpu} report={report} />
    </tr>
  );
}

/** Means and peaks of one GPU over the run, each with its unit; what was not measured is left out. */
function GpuFacts({ gpu, report }: Props) {
  const traced = tracedKernels(report, gpu);
  const joules = report.energy?.gpus?.find(({ index }) => index === gpu.index)?.energy_j ?? null;
  const watts = gpu.power_mw?.mean;
  const facts: [string, string, string][] = [
    traced === null ? [gpuActive().title, activeHint(), percent(gpu.utilization_pct?.mean) + spread(gpu)] : ['kernels, traced steps', TRACED_HINT, percent(traced)],
    ['VRAM peak', VRAM_HINT, vram(gpu)],
    ['MFU', mfuHint(gpu), typeof gpu.mfu_pct === 'number' ? `${percent(gpu.mfu_pct)}${gpu.peak?.text ? ` ${clean(gpu.peak.text, 40)}` : ''}` : ''],
    ['power', POWER_HINT, typeof watts === 'number' ? `${Math.round(watts / 1e3)} W${joules === null ? '' : ` · ${energy(joules)}`}` : ''],
    ['throttled', THROTTLED_HINT, throttledText(gpu)],
  ];
  return (
    <td>
      {facts.map(
        ([label, hint, value]) =>
          value && (
            <span key={label} title={hint}>
              {label} <b>{value}</b>{' '}
            </span>
          ),
      )}
    </td>
  );
}

/** One GPU that stands for many alike: the median of each of their numbers. */
function typical(alike: Gpu[]): Gpu {
  const middle = (of: (gpu: Gpu) => number | null | undefined): number | null => {
    const numbers = alike.map(of).filter((value): value is number => typeof value === 'number');
    return numbers.length > 0 ? median(numbers) : null;
  };
  const first = alike[0] as Gpu;
  return {
    ...first,
    utilization_pct: { mean: middle((gpu) => gpu.utilization_pct?.mean), p5: middle((gpu) => gpu.utilization_pct?.p5), p95: middle((gpu) => gpu.utilization_pct?.p95) },
    memory_used_bytes: { max: middle((gpu) => gpu.memory_used_bytes?.max) },
    throttled_pct: Object.fromEntries(Object.keys(first.throttled_pct ?? {}).map((why) => [why, middle((gpu) => gpu.throttled_pct?.[why])])),
  };
}

const activeHint = (): string => `${gpuActive().explanation}. Average share of time, and 5th to 95th percentile.`;
const TRACED_HINT = 'Share of the traced steps in which a kernel ran; utilization was not sampled.';
const VRAM_HINT = 'Highest device memory use in any sample, out of the total.';
const THROTTLED_HINT = 'Share of time in which the driver lowered the clocks, and why.';

const POWER_HINT = 'Power drawn by this GPU, averaged over all samples, and the energy that it used in this run.';

/** What MFU is, and where its denominator is from. */
const mfuHint = ({ peak }: Gpu): string =>
  `Model FLOPs utilization: matrix products and convolutions of the training steps, of the most this GPU does (dense). ${clean(peak?.derived ?? peak?.source ?? '', 200)}`;

const spread = ({ utilization_pct: use }: Gpu): string =>
  typeof use?.p5 === 'number' && typeof use.p95 === 'number' ? ` (${between(short(Math.round(use.p5)), short(Math.round(use.p95)), '–')})` : '';

export const aboutGpus = (item: Unavailable): boolean => /gpu|nvml|driver|cuda/i.test(item.source);

/** Why no GPU was recorded, and what to do about it. */
function NoGpu({ report }: { report: WordedReport }) {
  const why = report.unavailable.filter(aboutGpus);
  return (
    <div class="missing gpu-none">
      <b>No GPU recorded</b>
      {why.length === 0 && <p>The recording holds no GPU. Step and input times are measured all the same.</p>}
      {why.map((item) => (
        <p key={item.source}>
          <bdi>
            <Prose text={item.reason || item.source} />
          </bdi>
          <Remedy text={item.cure} />
        </p>
      ))}
    </div>
  );
}
