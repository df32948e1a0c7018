/** A card per GPU: how busy it was and how full, or why nothing is known. */
import { useState } from 'preact/hooks';
import type { GpuReport as Gpu, WordedReport, Unavailable } from '../api/types.ts';
import { namedGpus } from '../state/findings.ts';
import { energy, bytes, count, percent, short, UNKNOWN } from '../math/format.ts';
import { median, split } from '../math/odd.ts';
import { clean, ranges } from '../math/text.ts';
import { gpuActive } from '../words/accounts.ts';
import { Prose, Remedy } from './prose.tsx';

const COMPACT_FROM = 2;
/** So many alike make one row. */
const FOLDED_FROM = 3;

export function GpuCards({ report }: { report: WordedReport }) {
  const gpus = report.gpus;
  if (gpus.length === 0) return <NoGpu report={report} />;
  if (gpus.length >= COMPACT_FROM) return <GpuTable gpus={gpus} report={report} />;
  return (
    <div class="cards" role="region" aria-label="GPUs" tabIndex={gpus.length > 1 ? 0 : undefined}>
      {gpus.map((gpu) => (
        <GpuCard key={`${gpu.index} ${gpu.uuid ?? ''}`} gpu={gpu} traced={tracedKernels(report, gpu)} joules={energyOf(report, gpu)} />
      ))}
    </div>
  );
}

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

/** VRAM with its total, in the total's unit: ["11.5", "of 80 GiB"]. */
function vram(gpu: Gpu): [string, string] {
  const peak = gpu.memory_used_bytes?.max;
  const total = gpu.memory_total_bytes;
  if (typeof peak !== 'number') return [UNKNOWN, typeof total === 'number' ? `of ${bytes(total)}` : ''];
  if (typeof total !== 'number') return [bytes(peak), ''];
  const whole = bytes(total);
  const unit = whole.split(' ')[1] as string;
  const own = bytes(peak, total);
  return own.endsWith(` ${unit}`) ? [own.slice(0, -unit.length - 1), `of ${whole}`] : [own, `of ${whole}`];
}

/** Many GPUs: a row for each that differs, one for all that are alike. */
function GpuTable({ gpus, report }: { gpus: Gpu[]; report: WordedReport }) {
  const [open, setOpen] = useState(false);
  const traced = gpus.every((gpu) => tracedKernels(report, gpu) !== null);
  const active = (gpu: Gpu): number | null => gpu.utilization_pct?.mean ?? tracedKernels(report, gpu);
  const { odd, alike } = split(gpus, active, namedGpus(report));
  const folds = alike.length >= FOLDED_FROM;
  const columns: Columns = {
    traced,
    active,
    memory: gpus.some((gpu) => vram(gpu)[0] !== UNKNOWN),
    total: gpus.every((gpu) => vram(gpu)[1] === vram(gpus[0] as Gpu)[1]) ? vram(gpus[0] as Gpu)[1] : null,
    throttled: gpus.some((gpu) => throttledText(gpu) !== ''),
  };
  return (
    <div class="gpu-table" tabIndex={0} role="region" aria-label="GPUs">
      <table>
        <thead>
          <tr>
            <th scope="col">GPU</th>
            <th scope="col" colSpan={2} title={traced ? TRACED_HINT : activeHint()}>
              {traced ? 'kernels, traced' : `${gpuActive().title}, avg (p5–p95)`}
            </th>
            {columns.memory && (
              <th scope="col" title={VRAM_HINT}>
                VRAM peak {columns.total}
              </th>
            )}
            {columns.throttled && (
              <th scope="col" title={THROTTLED_HINT}>
                throttled
              </th>
            )}
          </tr>
        </thead>
        <tbody>
          {(folds ? odd : gpus).map((gpu) => (
            <GpuRow key={gpu.index} gpu={gpu} {...columns} />
          ))}
          {folds && (
            <tr class="alike">
              <th scope="row">
                <button type="button" class="linklike" aria-expanded={open} title={`gpu${ranges(alike.map(({ index }) => index))}`} onClick={() => setOpen(!open)}>
                  {open ? '▾' : '▸'} {odd.length > 0 ? `${count(alike.length)} alike` : `all ${count(alike.length)} alike`}
                </button>
              </th>
              <GpuCells gpu={typical(alike, active)} {...columns} />
            </tr>
          )}
          {folds && open && alike.map((gpu) => <GpuRow key={gpu.index} gpu={gpu} {...columns} />)}
        </tbody>
      </table>
    </div>
  );
}

interface Columns {
  traced: boolean;
  active: (gpu: Gpu) => number | null;
  memory: boolean;
  /** All memory there is, where it is the same of all. */
  total: string | null;
  throttled: boolean;
}

function GpuRow({ gpu, ...columns }: Columns & { gpu: Gpu }) {
  return (
    <tr>
      <th scope="row" title={clean(`${gpu.name ?? ''} ${gpu.uuid ?? ''}`, 120)}>
        gpu{gpu.index}
        {gpu.used_by_framework === false && <span class="warn"> unused</span>}
      </th>
      <GpuCells gpu={gpu} {...columns} />
    </tr>
  );
}

function GpuCells({ gpu, active, memory, total, throttled }: Columns & { gpu: Gpu }) {
  const use = gpu.utilization_pct;
  const at = active(gpu);
  const slowed = throttledText(gpu);
  return (
    <>
      <td class="gpu-table-meter">
        <Track low={use?.p5} high={use?.p95} at={at} colour="busy" />
      </td>
      <td title={spread(gpu) && `5th to 95th percentile: ${spread(gpu)} %`}>
        {percent(at)} <small class="dim">{spread(gpu)}</small>
      </td>
      {memory && (
        <td>
          {vram(gpu)[0]} {total === null && <small class="dim">{vram(gpu)[1]}</small>}
        </td>
      )}
      {throttled && <td>{slowed || UNKNOWN}</td>}
    </>
  );
}

/** One GPU that stands for many alike: the median of each of their numbers. */
function typical(alike: Gpu[], active: (gpu: Gpu) => number | null): Gpu {
  const middle = (of: (gpu: Gpu) => number | null | undefined): number | null => {
    const known = alike.map(of).filter((one): one is number => typeof one === 'number');
    return known.length > 0 ? median(known) : null;
  };
  const first = alike[0] as Gpu;
  return {
    ...first,
    utilization_pct: { mean: middle(active), p5: middle((gpu) => gpu.utilization_pct?.p5), p95: middle((gpu) => gpu.utilization_pct?.p95) },
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
const mfuHint = ({ peak, mfu_yardstick: others }: Gpu): string =>
  `Model FLOPs utilization: matrix products and convolutions of the training steps, of the most this GPU does (dense). ${clean(peak?.derived ?? peak?.source ?? '', 200)}${others ? ` Others: ${clean(others.source, 120)}.` : ''}`;

const spread = ({ utilization_pct: use }: Gpu): string =>
  typeof use?.p5 === 'number' && typeof use.p95 === 'number' ? `${short(Math.round(use.p5))}–${short(Math.round(use.p95))}` : '';

const energyOf = ({ energy: used }: WordedReport, { index }: Gpu): number | null => used?.gpus?.find((one) => one.index === index)?.energy_j ?? null;

function GpuCard({ gpu, traced, joules }: { gpu: Gpu; traced: number | null; joules: number | null }) {
  const use = gpu.utilization_pct;
  const peak = gpu.memory_used_bytes?.max;
  const total = gpu.memory_total_bytes;
  const unused = gpu.used_by_framework === false;
  const throttled = throttledText(gpu);
  return (
    <article class={unused ? 'card unused' : 'card'}>
      <h2 title={clean([gpu.name, gpu.uuid].filter(Boolean).join(' · '), 160)}>
        <b>gpu{gpu.index}</b> <bdi>{clean(gpu.name ?? '', 60)}</bdi>
      </h2>
      {unused && (
        <p class="warn">
          <span aria-hidden="true">⚠ </span>not used by the framework
        </p>
      )}
      {traced === null ? (
        <Meter label={gpuActive().title} hint={activeHint()} kind="avg" value={percent(use?.mean)} extra={spread(gpu)} at={use?.mean} low={use?.p5} high={use?.p95} colour="busy" />
      ) : (
        <Meter label="kernels, traced steps" hint={TRACED_HINT} value={percent(traced)} extra="" at={traced} colour="busy" />
      )}
      {vram(gpu)[0] !== UNKNOWN && <Meter label="VRAM peak" hint={VRAM_HINT} value={vram(gpu)[0]} extra={vram(gpu)[1]} at={typeof peak === 'number' && total ? (100 * peak) / total : null} colour="slate" />}
      {typeof gpu.mfu_pct === 'number' && (
        <Meter label="MFU" hint={mfuHint(gpu)} kind="avg" value={percent(gpu.mfu_pct)} extra={clean(gpu.peak?.text ?? '', 40)} at={gpu.mfu_pct} colour="slate" />
      )}
      {gpu.mfu_yardstick && <small class="dim">{clean(gpu.mfu_yardstick.text, 160)}</small>}
      {typeof gpu.power_mw?.mean === 'number' && (
        <div class="meter" title={POWER_HINT}>
          <span class="meter-label">power</span>
          <span class="meter-value">
            <b>{Math.round(gpu.power_mw.mean / 1e3)} W</b> <small class="dim">avg{joules === null ? '' : ` · ${energy(joules)}`}</small>
          </span>
        </div>
      )}
      {throttled && (
        <div class="meter" title={THROTTLED_HINT}>
          <span class="meter-label">throttled</span>
          <span class="meter-value">
            <b>{throttled}</b>
          </span>
        </div>
      )}
    </article>
  );
}

interface MeterProps {
  label: string;
  hint: string;
  /** What the value is of many. */
  kind?: string;
  value: string;
  extra: string;
  at?: number | null | undefined;
  low?: number | null | undefined;
  high?: number | null | undefined;
  colour: string;
}

function Meter({ label, hint, kind, value, extra, at, low, high, colour }: MeterProps) {
  return (
    <div class="meter" title={hint}>
      <span class="meter-label">{label}</span>
      <span class="meter-value">
        {kind && <small>{kind} </small>}
        <b>{value}</b> {extra && <small>{extra}</small>}
      </span>
      <Track at={at} low={low} high={high} colour={colour} />
    </div>
  );
}

/** A bar of 0 to 100 %: filled to `at`, or the range from `low` to `high` with a mark at `at`. */
function Track({ at, low, high, colour }: Pick<MeterProps, 'at' | 'low' | 'high' | 'colour'>) {
  const background = `var(--${colour})`;
  if (typeof low !== 'number' || typeof high !== 'number')
    return typeof at !== 'number' ? null : (
      <span class="meter-track" aria-hidden="true">
        <i style={{ width: `${Math.min(100, at)}%`, background }} />
      </span>
    );
  return (
    <span class="meter-track" aria-hidden="true">
      <i class="meter-range" style={{ left: `${low}%`, width: `${Math.max(0, high - low)}%`, background }} />
      {typeof at === 'number' && <i class="meter-mark" style={{ left: `${Math.min(99, at)}%` }} />}
    </span>
  );
}

export const aboutGpus = (item: Unavailable): boolean => /gpu|nvml|driver|cuda/i.test(item.source);

function NoGpu({ report }: { report: WordedReport }) {
  const why = report.unavailable.filter(aboutGpus);
  return (
    <div class="cards">
      <article class="card unused">
        <h2>
          <b>No GPU recorded</b>
        </h2>
        {why.length === 0 && <p>The recording holds no GPU. Step and input times are measured all the same.</p>}
        {why.map((item) => (
          <p key={item.source}>
            <bdi>
              <Prose text={item.reason || item.source} />
            </bdi>
            <Remedy text={item.cure} />
          </p>
        ))}
      </article>
    </div>
  );
}
