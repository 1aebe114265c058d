// hiprtc has it built in.
