/** Follows TensorBoard's dark mode, or the system's when there is no TensorBoard around us. */

export type ThemeListener = (dark: boolean) => void;

function hostBody(): HTMLElement | null {
  try {
    return window.parent !== window ? window.parent.document.body : null;
  } catch {
    return null; // embedded from another origin
  }
}

/** Sets the class `dark` on the root element now and whenever it changes; returns a stop function. */
export function followTheme(onChange: ThemeListener): () => void {
  const body = hostBody();
  const system = matchMedia('(prefers-color-scheme: dark)');
  const forced = matchMedia('(forced-colors: active)');
  let last = '';
  const apply = (): void => {
    const dark = body ? body.classList.contains('dark-mode') : system.matches;
    document.documentElement.classList.toggle('dark', dark);
    const now = `${dark} ${forced.matches}`;
    if (now !== last) {
      last = now;
      onChange(dark);
    }
  };
  apply();
  const observer = body ? new MutationObserver(apply) : null;
  if (body && observer) observer.observe(body, { attributes: true, attributeFilter: ['class'] });
  system.addEventListener('change', apply);
  forced.addEventListener('change', apply);
  return () => {
    observer?.disconnect();
    system.removeEventListener('change', apply);
    forced.removeEventListener('change', apply);
  };
}
