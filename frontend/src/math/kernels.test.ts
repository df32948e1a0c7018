import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { KernelReply } from '../api/types.ts';
import { filterKernels, kernelRows, kernelsOfStep, sortKernels } from './kernels.ts';

const kernel = (name: string, gpu: number, total: number | null, count: number | null, rest: Partial<KernelReply> = {}): KernelReply => ({
  name, gpu, op: null, count, total_ns: total, min_ns: null, max_ns: null, occupancy_pct: null, registers: null, blocks: null,
  threads_per_block: null, tensor_core: null, ...rest,
});
const rows = kernelRows(
  [kernel('gemm_bf16', 0, 600, 3, { op: 'dense/MatMul', occupancy_pct: 12 }), kernel('adam', 0, 300, 30), kernel('gemm_bf16', 1, 500, 2, { occupancy_pct: 50 }), kernel('mystery', 1, null, null)],
  { '0': 1000, '1': 500 },
);
const names = (list: typeof rows): string[] => list.map(({ kernel: { name, gpu } }) => `${name}@${gpu}`);

test('mean and share are of the kernel itself and of its own GPU', () => {
  assert.deepEqual(rows.map(({ mean, share }) => [mean, share]), [[200, 0.6], [10, 0.3], [250, 1], [null, null]]);
});

test('sorting puts the unknown last, whichever way', () => {
  assert.deepEqual(names(sortKernels(rows, 'total', true)), ['gemm_bf16@0', 'gemm_bf16@1', 'adam@0', 'mystery@1']);
  assert.deepEqual(names(sortKernels(rows, 'total', false)), ['adam@0', 'gemm_bf16@1', 'gemm_bf16@0', 'mystery@1']);
  assert.deepEqual(names(sortKernels(rows, 'name', false)).slice(0, 2), ['adam@0', 'gemm_bf16@0']);
  assert.deepEqual(names(sortKernels(rows, 'occupancy', true)).slice(0, 2), ['gemm_bf16@1', 'gemm_bf16@0']);
});

test('a filter finds words in names and ops, in any order', () => {
  assert.deepEqual(names(filterKernels(rows, 'MATMUL gemm', null)), ['gemm_bf16@0']);
  assert.deepEqual(names(filterKernels(rows, ' ', 1)), ['gemm_bf16@1', 'mystery@1']);
  assert.deepEqual(names(filterKernels(rows, '.*', null)), [], 'text, not a pattern');
});

test('kernels of a step have its own times and the details of their names', () => {
  const reply = {
    kernels: [kernel('gemm', 0, 6000, 60, { op: 'dense', max_ns: 300 })],
    step_kernels: { names: ['copy', 'gemm'], rows: [[7, 0, 1, 10, 900, 200], [7, 0, 0, 1, 100, 100], [8, 0, 1, 10, 1, 1]] as [number, number, number, number, number, number][] },
  };
  const rows = kernelsOfStep(reply, 7) ?? [];
  assert.deepEqual(rows.map(({ kernel: { name, op, count, total_ns }, mean, share }) => [name, op, count, total_ns, mean, share]), [
    ['gemm', 'dense', 10, 900, 90, 0.9],
    ['copy', null, 1, 100, 100, 0.1],
  ]);
  assert.equal(kernelsOfStep(reply, 9), null);
  assert.equal(kernelsOfStep({ kernels: [] }, 7), null);
});
