"""What patches do to torch: functions that change its classes before an unmodified script meets them."""
