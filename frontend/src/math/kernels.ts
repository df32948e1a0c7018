/** The kernel table's rows: what is derived, filtered and sorted. Pure. */
import type { KernelReply, WindowReply } from '../api/types.ts';

export type SortKey = 'name' | 'op' | 'gpu' | 'count' | 'total' | 'mean' | 'longest' | 'share' | 'occupancy' | 'tensor' | 'registers' | 'grid';

export interface KernelRow {
  kernel: KernelReply;
  /** Mean of a call, ns. */
  mean: number | null;
  /** Share of all kernel time on its GPU, 0 to 1. */
  share: number | null;
}

/** Rows of kernels; `totals`: nanoseconds of all kernels by GPU, of which `share` is a part. */
export function kernelRows(kernels: readonly KernelReply[], totals: Readonly<Record<string, number>>): KernelRow[] {
  return kernels.map((kernel) => {
    const { total_ns: total, count } = kernel;
    const all = totals[String(kernel.gpu)] ?? 0;
    return {
      kernel,
      mean: total !== null && count !== null && count > 0 ? total / count : null,
      share: total !== null && all > 0 ? total / all : null,
    };
  });
}

/**
 * The kernels of one step: what the step itself says of each, details of its name from the window's.
 * Null where the recording does not say what ran in a step.
 */
export function kernelsOfStep(reply: Pick<WindowReply, 'kernels' | 'step_kernels'>, step: number): KernelRow[] | null {
  const { names = [], rows = [] } = reply.step_kernels ?? {};
  const own = rows.filter((row) => row[0] === step);
  if (own.length === 0) return null;
  const runKernels = new Map(reply.kernels.map((kernel) => [`${kernel.gpu} ${kernel.name}`, kernel]));
  const blank: KernelReply = {
    gpu: 0, name: null, op: null, count: null, total_ns: null, min_ns: null, max_ns: null, occupancy_pct: null, registers: null, blocks: null,
    threads_per_block: null, tensor_core: null,
  };
  const totals: Record<string, number> = {};
  for (const [, gpu, , , total] of own) totals[gpu] = (totals[gpu] ?? 0) + total;
  return kernelRows(
    own.map(([, gpu, at, count, total_ns, max_ns]) => {
      const name = names[at] ?? '';
      return { ...(runKernels.get(`${gpu} ${name}`) ?? blank), gpu, name, count, total_ns, max_ns };
    }),
    totals,
  );
}

const VALUES: Record<SortKey, (row: KernelRow) => string | number | null> = {
  name: ({ kernel }) => kernel.name,
  op: ({ kernel }) => kernel.op,
  gpu: ({ kernel }) => kernel.gpu,
  count: ({ kernel }) => kernel.count,
  total: ({ kernel }) => kernel.total_ns,
  mean: ({ mean }) => mean,
  longest: ({ kernel }) => kernel.max_ns,
  share: ({ share }) => share,
  occupancy: ({ kernel }) => kernel.occupancy_pct,
  tensor: ({ kernel }) => kernel.tensor_core,
  registers: ({ kernel }) => kernel.registers,
  grid: ({ kernel }) => kernel.blocks,
};

/** Sorted; what is unknown stands last, whichever way. Equal rows keep their order. */
export function sortKernels(rows: readonly KernelRow[], key: SortKey, descending: boolean): KernelRow[] {
  const value = VALUES[key];
  return [...rows].sort((a, b) => {
    const [x, y] = [value(a), value(b)];
    if (x === y) return 0;
    if (x === null) return 1;
    if (y === null) return -1;
    const isLess = typeof x === 'string' ? x < String(y) : x < Number(y);
    return isLess === descending ? 1 : -1;
  });
}

/** Rows whose name or op has every word of `text`, on GPU `gpu` (null: on any). */
export function filterKernels(rows: readonly KernelRow[], text: string, gpu: number | null): KernelRow[] {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  return rows.filter(({ kernel }) => {
    if (gpu !== null && kernel.gpu !== gpu) return false;
    const of = `${kernel.name ?? ''} ${kernel.op ?? ''}`.toLowerCase();
    return words.every((word) => of.includes(word));
  });
}
