// A browser starts no worker from a file on disk: there, what a worker does runs in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class {
    constructor(url) {
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inside = this.frame.contentWindow;
      inside.postMessage = (data) => this.later(data, (told) => this.onmessage?.(told));
      const script = inside.document.createElement("script");
      script.src = new URL(url, document.baseURI);
      this.ready = new Promise((loaded) => (script.onload = loaded));
      script.onerror = () => this.onerror?.(new Event("error"));
      inside.document.body.append(script);
    }

    // As between threads: a copy, and never before the sender is done.
    later(data, tell) {
      const told = new MessageEvent("message", { data: structuredClone(data) });
      this.ready.then(() => setTimeout(tell, 0, told));
    }

    postMessage(data) {
      this.later(data, (told) => this.frame.contentWindow?.dispatchEvent(told));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
