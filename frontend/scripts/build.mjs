// Bundles the tab into one ES module and one stylesheet, committed under tensorboard_plugin/static/
// so that `pip install` needs no Node. `--check` compares a fresh build with what is committed;
// `--outdir DIR` builds elsewhere.
import { mkdir, readFile, writeFile } from 'node:fs/promises';
import { dirname, join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { gzipSync } from 'node:zlib';
import { build } from 'esbuild';
import { minify } from 'terser';

const root = dirname(dirname(fileURLToPath(import.meta.url)));
const args = process.argv.slice(2);
const check = args.includes('--check');
const outdir = args.includes('--outdir')
  ? resolve(args[args.indexOf('--outdir') + 1])
  : join(root, '..', 'tensorboard_plugin', 'static');
const LIMIT = 60 * 1024;

// Fields and methods that stand neither in a reply, nor in the DOM, nor in a link.
const OURS = `announce announced announcing arrived askLater axisSaid byKeyboard canUndo coarse compareWith cursorAt drawAll drawn
  drawOver evict fetchEverything generation inFlight invalidate invalidateFrom lacks lastMove layout layoutKey
  measureRange movePin moveRow neighbour nsWidth onGrown onInverse openOn openWindow openWindowAt overlayClear
  overviewLevel palette phasesTop placedSpans pump recordingError relayout resting runsError scrolled selection
  showHidden showSpan showWindow sources spanRows stepAt stores strongLine surfaces themeChanged tilesError timeAt
  togglePin touched wake wantTiles windowsTop`.split(/\s+/);
const replies = await readFile(join(root, 'src', 'api', 'types.ts'), 'utf8');
const foreign = OURS.filter((name) => new RegExp(`\\b${name}\\b`).test(replies));
if (foreign.length > 0) throw new Error(`the server's replies have fields of these names: ${foreign.join(', ')}`);

const result = await build({
  absWorkingDir: root,
  entryPoints: { index: 'src/index.ts', style: 'src/style.css' },
  outdir,
  write: false,
  bundle: true,
  format: 'esm',
  target: ['es2022', 'chrome109', 'firefox115', 'safari16'],
  minify: true,
  legalComments: 'none',
  charset: 'utf8',
  jsx: 'automatic',
  jsxImportSource: 'preact',
  logLevel: 'warning',
});

// A second minifier takes off another four percent, and shortens what only our own code calls so.
const files = await Promise.all(
  result.outputFiles.map(async ({ path, text }) => {
    const mangle = { properties: { regex: new RegExp(`^(${OURS.join('|')})$`) } };
    const small = path.endsWith('.js') ? (await minify(text, { module: true, ecma: 2020, compress: { passes: 3 }, mangle })).code : text;
    return { path, bytes: Buffer.from(small) };
  }),
);
if (!check) {
  await mkdir(outdir, { recursive: true });
  for (const { path, bytes } of files) await writeFile(path, bytes);
}

let total = 0;
let stale = false;
for (const { path, bytes } of files) {
  const zipped = gzipSync(bytes, { level: 9 }).length;
  total += zipped;
  console.log(`${path.split(/[\\/]/).pop()}  ${bytes.length} bytes, ${zipped} gzipped`);
  if (check) {
    const committed = await readFile(path).catch(() => Buffer.alloc(0));
    if (!committed.equals(bytes)) {
      console.error(`  differs from the committed file: run \`npm run build\` and commit the result`);
      stale = true;
    }
  }
}
if (total > LIMIT) {
  console.error(`the bundle is ${total} bytes gzipped; the budget is ${LIMIT}`);
  stale = true;
}
process.exitCode = stale ? 1 : 0;
