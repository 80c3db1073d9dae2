/** Whether values are all finite, as fast as JavaScript tells. */

export function allFinite(values: Float32Array): boolean {
  let nothing = 0;
  // x - x is 0 for finite values and NaN for all others.
  for (let i = 0; i < values.length; i++) nothing += (values[i] as number) - (values[i] as number);
  return nothing === 0;
}
