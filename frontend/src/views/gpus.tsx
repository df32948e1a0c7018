/** A card per GPU: how busy it was and how full, or why nothing is known. */
import type { Gpu, Report } from '../api/types.ts';
import { bytes, percent, UNKNOWN } from '../math/format.ts';
import { clean } from '../math/text.ts';
import { Prose, Remedy } from './prose.tsx';

const COMPACT_FROM = 3;

export function GpuCards({ report }: { report: Report }) {
  const gpus = report.gpus ?? [];
  if (gpus.length === 0) return <NoGpu report={report} />;
  if (gpus.length >= COMPACT_FROM) return <GpuTable gpus={gpus} />;
  return (
    <div class="cards" role="region" aria-label="GPUs" tabIndex={gpus.length > 1 ? 0 : undefined}>
      {gpus.map((gpu) => (
        <GpuCard key={`${gpu.index} ${gpu.uuid ?? ''}`} gpu={gpu} />
      ))}
    </div>
  );
}

/** Many GPUs: a row each, so that the odd one out shows. */
function GpuTable({ gpus }: { gpus: Gpu[] }) {
  return (
    <div class="gpu-table" tabIndex={0} role="region" aria-label="GPUs">
      <table>
        <thead>
          <tr>
            <th scope="col">GPU</th>
            <th scope="col" colSpan={2}>
              kernel active
            </th>
            <th scope="col">VRAM peak</th>
          </tr>
        </thead>
        <tbody>
          {gpus.map((gpu) => (
            <tr key={`${gpu.index} ${gpu.uuid ?? ''}`}>
              <th scope="row" title={clean(`${gpu.name ?? ''} ${gpu.uuid ?? ''}`, 120)}>
                gpu{gpu.index}
                {gpu.used_by_framework === false && <span class="warn"> unused</span>}
              </th>
              <td class="gpu-table-meter">
                <Track low={gpu.utilization_pct?.p5} high={gpu.utilization_pct?.p95} at={gpu.utilization_pct?.p50} colour="blue" />
              </td>
              <td>{percent(gpu.utilization_pct?.p50)}</td>
              <td>{bytes(gpu.memory_used_bytes?.max, gpu.memory_total_bytes)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function GpuCard({ gpu }: { gpu: Gpu }) {
  const use = gpu.utilization_pct;
  const peak = gpu.memory_used_bytes?.max;
  const total = gpu.memory_total_bytes;
  const unused = gpu.used_by_framework === false;
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
      <Meter
        label="kernel active"
        hint="NVML utilization: share of time in which any kernel ran. Median, and 5th to 95th percentile."
        value={percent(use?.p50)}
        extra={typeof use?.p5 === 'number' && typeof use.p95 === 'number' ? `${Math.round(use.p5)}–${Math.round(use.p95)}` : ''}
        at={use?.p50}
        low={use?.p5}
        high={use?.p95}
        colour="blue"
      />
      <Meter
        label="VRAM peak"
        hint="Most device memory in use at any sample, of all there is."
        value={typeof peak === 'number' ? bytes(peak, total ?? peak) : UNKNOWN}
        extra={typeof total === 'number' ? `of ${bytes(total)}` : ''}
        at={typeof peak === 'number' && total ? (100 * peak) / total : null}
        colour="mauve"
      />
      {typeof gpu.throttled_pct === 'number' && gpu.throttled_pct > 0 && (
        <Meter label="throttled" hint="Share of time in which the driver lowered the clocks." value={percent(gpu.throttled_pct)} extra="" at={gpu.throttled_pct} colour="red" />
      )}
    </article>
  );
}

interface MeterProps {
  label: string;
  hint: string;
  value: string;
  extra: string;
  at?: number | null | undefined;
  low?: number | null | undefined;
  high?: number | null | undefined;
  colour: string;
}

function Meter({ label, hint, value, extra, at, low, high, colour }: MeterProps) {
  return (
    <div class="meter" title={hint}>
      <span class="meter-label">{label}</span>
      <span class="meter-value">
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
    return (
      <span class="meter-track" aria-hidden="true">
        {typeof at === 'number' && <i style={{ width: `${Math.min(100, at)}%`, background }} />}
      </span>
    );
  return (
    <span class="meter-track" aria-hidden="true">
      <i class="meter-range" style={{ left: `${low}%`, width: `${Math.max(0, high - low)}%`, background }} />
      {typeof at === 'number' && <i class="meter-mark" style={{ left: `${Math.min(99, at)}%` }} />}
    </span>
  );
}

function NoGpu({ report }: { report: Report }) {
  const why = (report.unavailable ?? []).filter((item) => /gpu|nvml|driver|cuda/i.test(item.source));
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
