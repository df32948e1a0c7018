import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { GpuReport as Gpu } from '../api/types.ts';
import { median, split } from './odd.ts';

const gpu = (index: number, more: Partial<Gpu> = {}): Gpu => ({
  index, name: 'H100', used_by_framework: true, utilization_pct: { mean: 93 + (index % 3) }, memory_used_bytes: { max: 40e9 + index * 1e6 },
  throttled_pct: { thermal: 0 }, ...more,
});
const mean = (one: Gpu): number | null => one.utilization_pct?.mean ?? null;
const many = (change: Record<number, Partial<Gpu>> = {}): Gpu[] => Array.from({ length: 64 }, (_, i) => gpu(i, change[i]));
const odd = (gpus: Gpu[], named: number[] = []): number[] => split(gpus, mean, new Set(named.map((index) => `gpu${index}`))).odd.map(({ index }) => index);

test('equal GPUs are alike', () => {
  assert.deepEqual(odd(many()), []);
  assert.equal(split(many(), mean, new Set()).alike.length, 64);
  assert.equal(median([3, 1, 2, 10]), 2.5);
});

test('what differs stands out: use, memory, throttling, model, not used, not measured, named', () => {
  const changes = {
    3: { utilization_pct: { mean: 41 } }, 9: { memory_used_bytes: { max: 70e9 } }, 12: { throttled_pct: { thermal: 40 } },
    20: { name: 'A100' }, 30: { used_by_framework: false }, 37: { utilization_pct: undefined },
  };
  assert.deepEqual(odd(many(changes), [50]), [3, 9, 12, 20, 30, 37, 50]);
});

test('all of them throttled alike are alike', () => {
  assert.deepEqual(odd(many().map((one) => ({ ...one, throttled_pct: { power: 60 } }))), []);
});
