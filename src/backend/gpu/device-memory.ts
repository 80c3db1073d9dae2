/**
 * How many bytes a device's buffers take, and took at the most. The device itself is made to count, so that no buffer escapes,
 * whoever makes it and for whatever: from when it is made until it is destroyed, mapped ones too.
 */

export class DeviceMemory {
  #bytes = 0;
  #peakBytes = 0;

  /** Before anything is made on `device`. */
  constructor(device: GPUDevice) {
    const { createBuffer } = device;
    device.createBuffer = (descriptor) => this.#counted(createBuffer.call(device, descriptor));
  }

  get bytes(): number {
    return this.#bytes;
  }

  /** Since the device was opened. */
  get peakBytes(): number {
    return this.#peakBytes;
  }

  #counted(buffer: GPUBuffer): GPUBuffer {
    const { size } = buffer;
    this.#bytes += size;
    this.#peakBytes = Math.max(this.#peakBytes, this.#bytes);
    const { destroy } = buffer;
    let there = true;
    buffer.destroy = () => {
      if (there) this.#bytes -= size;
      there = false;
      return destroy.call(buffer);
    };
    return buffer;
  }
}
