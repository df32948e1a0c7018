// Bundles every src/**/*.test.ts and runs them with Node's own test runner.
import { spawnSync } from 'node:child_process';
import { mkdtemp, readdir, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { build } from 'esbuild';

const root = dirname(dirname(fileURLToPath(import.meta.url)));
const all = await readdir(join(root, 'src'), { recursive: true });
const tests = all.filter((name) => /\.test\.tsx?$/.test(name)).map((name) => join(root, 'src', name));
const outdir = await mkdtemp(join(tmpdir(), 'frontend-tests-'));
try {
  await build({
    entryPoints: tests,
    outbase: join(root, 'src'),
    outdir,
    bundle: true,
    format: 'esm',
    platform: 'node',
    target: 'node20',
    outExtension: { '.js': '.mjs' },
    jsx: 'automatic',
    jsxImportSource: 'preact',
    sourcemap: 'inline',
    logLevel: 'warning',
  });
  const built = (await readdir(outdir, { recursive: true }))
    .filter((name) => name.endsWith('.test.mjs'))
    .map((name) => join(outdir, name));
  const run = spawnSync(process.execPath, ['--enable-source-maps', '--test', ...built], { stdio: 'inherit' });
  process.exitCode = run.status ?? 1;
} finally {
  await rm(outdir, { recursive: true, force: true });
}
